/* The header twice in one file, in C11. */
#include <forebay.h>
#include <forebay.h>

int main(void) { return forebay_free(NULL) == FOREBAY_OK ? 0 : 1; }
