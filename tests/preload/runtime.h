/* The checks on CUDA's runtime, as one function for a program and for a plugin. */
#ifndef FOREBAY_TESTS_RUNTIME_H
#define FOREBAY_TESTS_RUNTIME_H

/* Runs all checks and prints their lines; how many calls failed. */
int run_checks(void);

#endif
