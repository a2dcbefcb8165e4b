/* Between a server and its C library: a disk that is full or fails, a clock that steps, and a note of what is synced.

   tests/torture/shim.py compiles it, has it loaded with LD_PRELOAD, and turns faults on and off by what it writes to a
   file that both have mapped. Only regular files below one folder have faults. With none on, a call costs a look at the
   control and nothing else. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536

/* As FIELDS and FILES of shim.py. */
struct control {
    int64_t clock_offset_ns;    /* added to the time of day */
    int64_t is_full;            /* the disk has free_bytes and no more */
    int64_t free_bytes;
    int64_t write_fails;        /* every so-manieth write is EIO; 0: none */
    int64_t sync_fails;         /* every so-manieth sync is EIO; 0: none */
    int64_t refused;            /* what has been done: ENOSPC */
    int64_t failed_writes;
    int64_t failed_syncs;
    int64_t writes;             /* counters that decide which one fails */
    int64_t syncs;
    struct { int64_t inode, size; } synced[FILES]; /* how much of each file a sync has reached,
        or -1 minus that once one has failed: what is behind it never gets there; inode 0: no file */
};

static struct control nothing;
static struct control *control = &nothing;
static char folder[4096];
static size_t folder_length;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("KESTREL_SHIM_CONTROL"), *below = getenv("KESTREL_SHIM_FOLDER");
    if (path == NULL || below == NULL) return;
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped == MAP_FAILED) return;
    snprintf(folder, sizeof folder, "%s/", below);
    folder_length = strlen(folder);
    control = mapped;
}

static int64_t get(int64_t *field) { return __atomic_load_n(field, __ATOMIC_SEQ_CST); }
static int64_t add(int64_t *field, int64_t number) { return __atomic_add_fetch(field, number, __ATOMIC_SEQ_CST); }

/* The note of a file, or NULL if there are too many. */
static int64_t *synced_size_of(int64_t inode) {
    for (int64_t number = 0; number < FILES; number++) {
        int64_t place = (inode + number) % FILES, none = 0;
        int64_t *its = &control->synced[place].inode;
        if (get(its) == inode ||
            __atomic_compare_exchange_n(its, &none, inode, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) || none == inode)
            return &control->synced[place].size;
    }
    return NULL;
}

static int is_ours(int descriptor) {
    struct stat status;
    char name[64], path[4096];
    if (syscall(SYS_fstat, descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(name, path, sizeof path);
    return length > (ssize_t)folder_length && memcmp(path, folder, folder_length) == 0;
}

/* How many of the bytes there is room for, and takes that room. */
static int64_t room_for(int64_t wanted) {
    for (;;) {
        int64_t free_bytes = get(&control->free_bytes);
        int64_t taken = free_bytes < wanted ? (free_bytes < 0 ? 0 : free_bytes) : wanted;
        if (__atomic_compare_exchange_n(&control->free_bytes, &free_bytes, free_bytes - taken, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return taken;
    }
}

/* How many of the bytes may be written; -1: none, as errno says. *spoils: write them, and fail all the same. */
static int64_t may_write(int descriptor, int64_t size, int *spoils) {
    int64_t each = get(&control->write_fails);
    *spoils = 0;
    if ((each == 0 && !get(&control->is_full)) || size == 0 || !is_ours(descriptor)) return size;
    if (each != 0) {
        int64_t number = add(&control->writes, 1);
        if (number % each == 0) {
            add(&control->failed_writes, 1);
            *spoils = 1;
            return number / each % 2 ? size / 2 : 0;
        }
    }
    if (get(&control->is_full)) {
        int64_t room = room_for(size);
        if (room == 0) {
            add(&control->refused, 1);
            errno = ENOSPC;
            return -1;
        }
        return room;
    }
    return size;
}

ssize_t write(int descriptor, const void *data, size_t size) {
    int spoils;
    int64_t part = may_write(descriptor, size, &spoils);
    if (part < 0) return -1;
    ssize_t written = part == 0 && spoils ? 0 : syscall(SYS_write, descriptor, data, (size_t)part);
    if (spoils) { errno = EIO; return -1; }
    return written;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    int spoils;
    int64_t part = may_write(descriptor, size, &spoils);
    if (part < 0) return -1;
    ssize_t written = part == 0 && spoils ? 0 : syscall(SYS_pwrite64, descriptor, data, (size_t)part, offset);
    if (spoils) { errno = EIO; return -1; }
    return written;
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    return pwrite64(descriptor, data, size, offset);
}

/* Of many parts the first is written: callers have to go on anyway. */
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    if ((get(&control->write_fails) || get(&control->is_full)) && is_ours(descriptor))
        for (int number = 0; number < count; number++)
            if (parts[number].iov_len) return write(descriptor, parts[number].iov_base, parts[number].iov_len);
    return syscall(SYS_writev, descriptor, parts, count);
}

static int sync_fails(int descriptor) {
    int64_t each = get(&control->sync_fails);
    if (each == 0 || !is_ours(descriptor) || add(&control->syncs, 1) % each != 0) return 0;
    add(&control->failed_syncs, 1);
    errno = EIO;
    return 1;
}

static int sync_and_note(long call, int descriptor) {
    struct stat status;
    int is_noted = control != &nothing && is_ours(descriptor) && syscall(SYS_fstat, descriptor, &status) == 0;
    int64_t *size = is_noted ? synced_size_of(status.st_ino) : NULL;
    if (sync_fails(descriptor)) {
        if (size != NULL && get(size) >= 0) __atomic_store_n(size, -1 - get(size), __ATOMIC_SEQ_CST);
        errno = EIO;
        return -1;
    }
    int result = (int)syscall(call, descriptor);
    if (size != NULL && result == 0 && get(size) >= 0) __atomic_store_n(size, status.st_size, __ATOMIC_SEQ_CST);
    return result;
}

int fsync(int descriptor) { return sync_and_note(SYS_fsync, descriptor); }

int fdatasync(int descriptor) { return sync_and_note(SYS_fdatasync, descriptor); }

static int has_room_for(int descriptor, int64_t size) {
    if (!get(&control->is_full) || !is_ours(descriptor)) return 1;
    if (get(&control->free_bytes) >= size && room_for(size) == size) return 1;
    add(&control->refused, 1);
    return 0;
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t size) {
    if (!has_room_for(descriptor, size)) { errno = ENOSPC; return -1; }
    return (int)syscall(SYS_fallocate, descriptor, mode, offset, size);
}

int fallocate(int descriptor, int mode, off_t offset, off_t size) {
    return fallocate64(descriptor, mode, offset, size);
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t size) {
    int before = errno;
    int result = fallocate64(descriptor, 0, offset, size) == 0 ? 0 : errno;
    errno = before;
    return result;
}

int posix_fallocate(int descriptor, off_t offset, off_t size) { return posix_fallocate64(descriptor, offset, size); }

/* What is erased or cut gives its room back. */

int ftruncate64(int descriptor, off64_t size) {
    struct stat status;
    if (control != &nothing && is_ours(descriptor) && syscall(SYS_fstat, descriptor, &status) == 0) {
        if (get(&control->is_full) && status.st_size > size) add(&control->free_bytes, status.st_size - size);
        int64_t *synced = synced_size_of(status.st_ino);
        if (synced != NULL && get(synced) > size) __atomic_store_n(synced, size, __ATOMIC_SEQ_CST);
        if (synced != NULL && get(synced) < -1 - size) __atomic_store_n(synced, -1 - size, __ATOMIC_SEQ_CST);
    }
    return (int)syscall(SYS_ftruncate, descriptor, size);
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

/* The file of that name goes: its inode is soon another's. */
static void goes(int at, const char *path) {
    struct stat status;
    if (control == &nothing || fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return;
    if (get(&control->is_full)) add(&control->free_bytes, status.st_size);
    int64_t *synced = synced_size_of(status.st_ino);
    if (synced != NULL) __atomic_store_n(synced, 0, __ATOMIC_SEQ_CST);
}

int unlinkat(int at, const char *path, int flags) {
    if (!(flags & AT_REMOVEDIR)) goes(at, path);
    return (int)syscall(SYS_unlinkat, at, path, flags);
}

int renameat(int old_at, const char *old, int new_at, const char *new) {
    goes(new_at, new);
    return (int)syscall(SYS_renameat2, old_at, old, new_at, new, 0);
}

int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int statvfs64(const char *path, struct statvfs64 *status) {
    int (*next)(const char *, struct statvfs64 *) = dlsym(RTLD_NEXT, "statvfs64");
    int result = next(path, status);
    if (result == 0 && get(&control->is_full)) {
        int64_t free_bytes = get(&control->free_bytes);
        status->f_bavail = status->f_bfree = (free_bytes < 0 ? 0 : free_bytes) / (status->f_frsize ? status->f_frsize : 1);
    }
    return result;
}

int statvfs(const char *path, struct statvfs *status) {
    return statvfs64(path, (struct statvfs64 *)status); /* where off_t has 64 bits these are the same */
}

/* The time of day. */

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + get(&control->clock_offset_ns);
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where != NULL) *where = now.tv_sec;
    return now.tv_sec;
}
