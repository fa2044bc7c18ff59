/* The checks on CUDA's runtime as a program. */
#include "runtime.h"

int main(void)
{
    return run_checks() == 0 ? 0 : 1;
}
