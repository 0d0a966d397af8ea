/* libtaskd.so: what the LD_PRELOAD line of a training script loads.
 *
 * In the reference system this library held the whole backend, so start scripts put it in LD_PRELOAD.
 * Here the backend is Python and nothing needs the preload, but the scripts remain, and a preloaded library
 * lands in every process they start: shells, ls, compilers, data loaders. So it does as little as possible:
 *
 *   - no constructor, no interposed function, no state, no thread: loading it maps one small file;
 *   - no dependency at all, not even libc: it loads under any glibc or musl;
 *   - it answers two questions: which TaskD it belongs to, and (by being found in the global scope) whether
 *     the preload took effect. taskd.python.cython_api.cython_api asks them.
 *
 * It does not set a parent-death signal, though a preload could: the signal fires when the *thread* that
 * started the process ends, so a pool of threads that starts helpers would lose them.
 */

#ifndef TASKD_VERSION
#define TASKD_VERSION "unknown"
#endif

#define EXPORT __attribute__((visibility("default")))

/* Found with dlsym(RTLD_DEFAULT, ...) only in a process into which the library was preloaded. */
EXPORT const int taskd_preload_marker = 1;

EXPORT const char *taskd_version(void)
{
    return TASKD_VERSION;
}
