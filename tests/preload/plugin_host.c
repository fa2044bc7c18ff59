/* Opens the checks as a plugin, with RTLD_DEEPBIND if the second argument is "deep". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    if (count < 2) {
        fprintf(stderr, "plugin_host PLUGIN [deep]\n");
        return 2;
    }
    int flags = RTLD_NOW | RTLD_LOCAL;
    if (count > 2 && strcmp(words[2], "deep") == 0) {
        flags |= RTLD_DEEPBIND;
    }
    void *plugin = dlopen(words[1], flags);
    if (plugin == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    int (*run)(void) = NULL;
    /* ISO C has no cast from an object's address to a function's. */
    void *found = dlsym(plugin, "run_checks");
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    memcpy(&run, &found, sizeof run);
    return run() == 0 ? 0 : 1;
}
