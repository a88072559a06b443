/* Stands before the C library (LD_PRELOAD) and lets the disk fail while the file named by QUIPU_FAULT exists. It holds two
 * words: how ("sync" and "write" fail with EIO, "full" writes fail with ENOSPC), and how the names of the files end that
 * this happens to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_wanted(const char *fault, int file) {
    const char *trigger = getenv("QUIPU_FAULT");
    char said[64] = "", link[64], path[4096] = "";
    int handle = trigger ? open(trigger, O_RDONLY | O_CLOEXEC) : -1;
    if (handle < 0) return 0;
    ssize_t length = read(handle, said, sizeof said - 1);
    close(handle);
    char *name_end = length > 0 ? strchr(said, ' ') : NULL;
    if (!name_end) return 0;
    *name_end++ = 0;
    if (strcmp(said, fault) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    length = readlink(link, path, sizeof path - 1);
    size_t end = strlen(name_end);
    return length > (ssize_t)end && strcmp(path + length - end, name_end) == 0;
}

static int fail(int reason) {
    errno = reason;
    return -1;
}

int fdatasync(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return is_wanted("sync", file) ? fail(EIO) : real(file);
}

int fsync(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return is_wanted("sync", file) ? fail(EIO) : real(file);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t position) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (is_wanted("write", file)) return fail(EIO);
    if (is_wanted("full", file)) return fail(ENOSPC);
    return real(file, bytes, length, position);
}
