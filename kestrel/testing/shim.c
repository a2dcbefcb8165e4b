/* Wrappers of the C library's file and clock functions that inject faults and record writes and syncs.

   kestrel/testing/shim.py compiles this file and loads it into a process with LD_PRELOAD. Both map one control file,
   which turns faults on and off. Faults concern regular files below one folder only. If KESTREL_SHIM_LOG names a file,
   each write, truncation, sync, rename and removal below the folder is appended to it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
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

/* The same layout as FIELDS and FILES of shim.py. */
struct control {
    int64_t clock_offset_ns;    /* added to the time of day */
    int64_t is_full;            /* only free_bytes are left on the disk */
    int64_t free_bytes;
    int64_t write_fails;        /* every n-th write fails with EIO; 0: none */
    int64_t sync_fails;         /* every n-th sync fails with EIO; 0: none */
    int64_t refused;            /* injected faults: ENOSPC, EIO of writes and of syncs */
    int64_t failed_writes;
    int64_t failed_syncs;
    int64_t writes;             /* counters that decide which call fails */
    int64_t syncs;
    int64_t operations;         /* writes, truncations, syncs, renames and removals so far */
    int64_t dies_at;            /* the process is killed before this operation; 0: never */
    /* For each file, by inode (0: unused), the size that a sync has reached. After a failed sync it is -1 minus that
       size, and later data is never durable. */
    struct { int64_t inode, size; } synced[FILES];
};

static struct control nothing;
static struct control *control = &nothing;
static char folder[4096];
static size_t folder_length;
static int log_descriptor = -1;

/* The same values as KINDS and HEADER of shim.py. The path and the data follow; a rename has the new path as its
   data. */
enum kind { WRITE, TRUNCATE, SYNC, RENAME, REMOVE };
struct header { int32_t kind, path_size; int64_t offset, data_size; };

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
    const char *log = getenv("KESTREL_SHIM_LOG");
    if (log != NULL) log_descriptor = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static int64_t get(int64_t *field) { return __atomic_load_n(field, __ATOMIC_SEQ_CST); }
static int64_t add(int64_t *field, int64_t number) { return __atomic_add_fetch(field, number, __ATOMIC_SEQ_CST); }

/* Return the entry for a file; NULL if there are too many files. */
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

static int is_below_folder(const char *path, ssize_t length) {
    return length > (ssize_t)folder_length && memcmp(path, folder, folder_length) == 0;
}

/* Store the path of a linked regular file below the folder. Return its length; 0 for any other descriptor. */
static ssize_t path_of(int descriptor, char path[4096]) {
    struct stat status;
    char name[64];
    if (syscall(SYS_fstat, descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink == 0) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(name, path, 4096);
    return is_below_folder(path, length) ? length : 0;
}

static int is_ours(int descriptor) {
    char path[4096];
    return path_of(descriptor, path) != 0;
}

/* Count an operation below the folder, and kill the process if it is the one to die at. */
static void count_operation(void) {
    if (add(&control->operations, 1) == get(&control->dies_at)) kill(getpid(), SIGKILL);
}

static void append_to_log(enum kind kind, const char *path, ssize_t path_size, int64_t offset, const void *data,
                          int64_t data_size) {
    struct header header = {kind, (int32_t)path_size, offset, data_size};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)path, path_size}, {(void *)data, data_size}};
    size_t size = sizeof header + path_size + data_size;
    int before = errno;
    /* A log with a gap would be useless. */
    if (syscall(SYS_writev, log_descriptor, parts, 3) != (long)size) abort();
    errno = before;
}

/* Record a successful operation that changed data, and return its result. A write to an O_DSYNC file is also a sync. */
static ssize_t record(enum kind kind, int descriptor, int64_t offset, const void *data, ssize_t result) {
    char path[4096];
    ssize_t length;
    if (log_descriptor < 0 || result < 0 || (length = path_of(descriptor, path)) == 0) return result;
    append_to_log(kind, path, length, offset, data, data == NULL ? 0 : result);
    if (kind == WRITE && fcntl(descriptor, F_GETFL) & O_DSYNC) append_to_log(SYNC, path, length, 0, NULL, 0);
    return result;
}

/* Return the offset at which write() puts its data. */
static int64_t end_or_position(int descriptor) {
    int is_appended = (fcntl(descriptor, F_GETFL) & O_APPEND) != 0;
    struct stat status;
    if (is_appended && syscall(SYS_fstat, descriptor, &status) == 0) return status.st_size;
    return lseek(descriptor, 0, SEEK_CUR);
}

/* Return how many of the wanted bytes there is room for, and reserve that room. */
static int64_t room_for(int64_t wanted) {
    for (;;) {
        int64_t free_bytes = get(&control->free_bytes);
        int64_t taken = free_bytes < wanted ? (free_bytes < 0 ? 0 : free_bytes) : wanted;
        if (__atomic_compare_exchange_n(&control->free_bytes, &free_bytes, free_bytes - taken, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return taken;
    }
}

/* Return how many bytes may be written; -1 with errno set if none. If *spoils is set, write them, then fail with
   EIO. On a full disk only bytes past the end of the file need room. */
static int64_t may_write(int descriptor, int64_t size, int64_t offset, int *spoils) {
    int64_t each = get(&control->write_fails);
    *spoils = 0;
    if (control == &nothing || size == 0 || !is_ours(descriptor)) return size;
    count_operation();
    if (each != 0) {
        int64_t number = add(&control->writes, 1);
        if (number % each == 0) {
            add(&control->failed_writes, 1);
            *spoils = 1;
            return number / each % 2 ? size / 2 : 0;
        }
    }
    if (get(&control->is_full)) {
        struct stat status;
        int64_t inside = 0;
        if (syscall(SYS_fstat, descriptor, &status) == 0 && status.st_size > offset)
            inside = status.st_size - offset < size ? status.st_size - offset : size;
        int64_t room = inside + (inside < size ? room_for(size - inside) : 0);
        if (room == 0) {
            add(&control->refused, 1);
            errno = ENOSPC;
            return -1;
        }
        return room;
    }
    return size;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    int spoils;
    int64_t part = may_write(descriptor, size, offset, &spoils);
    if (part < 0) return -1;
    ssize_t written = part == 0 && spoils ? 0 : syscall(SYS_pwrite64, descriptor, data, (size_t)part, offset);
    record(WRITE, descriptor, offset, data, written);
    if (spoils) { errno = EIO; return -1; }
    return written;
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    return pwrite64(descriptor, data, size, offset);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    int spoils;
    int64_t offset = control == &nothing ? 0 : end_or_position(descriptor);
    int64_t part = may_write(descriptor, size, offset, &spoils);
    if (part < 0) return -1;
    ssize_t written = part == 0 && spoils ? 0 : syscall(SYS_write, descriptor, data, (size_t)part);
    record(WRITE, descriptor, offset, data, written);
    if (spoils) { errno = EIO; return -1; }
    return written;
}

/* With a fault or a log, write the first part only: callers must handle short writes. */
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    int is_watched = get(&control->write_fails) || get(&control->is_full) || get(&control->dies_at) || log_descriptor >= 0;
    if (is_watched && is_ours(descriptor))
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
    if (is_noted) count_operation();
    int64_t *size = is_noted ? synced_size_of(status.st_ino) : NULL;
    if (sync_fails(descriptor)) {
        if (size != NULL && get(size) >= 0) __atomic_store_n(size, -1 - get(size), __ATOMIC_SEQ_CST);
        errno = EIO;
        return -1;
    }
    int result = (int)syscall(call, descriptor);
    if (size != NULL && result == 0 && get(size) >= 0) __atomic_store_n(size, status.st_size, __ATOMIC_SEQ_CST);
    if (is_noted) record(SYNC, descriptor, 0, NULL, result);
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
    int result = (int)syscall(SYS_fallocate, descriptor, mode, offset, size);
    struct stat status;
    if (mode == 0 && control != &nothing && syscall(SYS_fstat, descriptor, &status) == 0)
        record(TRUNCATE, descriptor, status.st_size, NULL, result);
    return result;
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

/* Removing or shortening a file frees its room. */

int ftruncate64(int descriptor, off64_t size) {
    struct stat status;
    if (control != &nothing && is_ours(descriptor) && syscall(SYS_fstat, descriptor, &status) == 0) {
        count_operation();
        if (get(&control->is_full) && status.st_size > size) add(&control->free_bytes, status.st_size - size);
        int64_t *synced = synced_size_of(status.st_ino);
        if (synced != NULL && get(synced) > size) __atomic_store_n(synced, size, __ATOMIC_SEQ_CST);
        if (synced != NULL && get(synced) < -1 - size) __atomic_store_n(synced, -1 - size, __ATOMIC_SEQ_CST);
    }
    return (int)record(TRUNCATE, descriptor, size, NULL, syscall(SYS_ftruncate, descriptor, size));
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

/* Account for the removal of the file of that name: another file soon has its inode. */
static void goes(int at, const char *path) {
    struct stat status;
    if (control == &nothing || fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return;
    if (get(&control->is_full)) add(&control->free_bytes, status.st_size);
    int64_t *synced = synced_size_of(status.st_ino);
    if (synced != NULL) __atomic_store_n(synced, 0, __ATOMIC_SEQ_CST);
}

/* Store the path of a name that need not exist. Return its length; 0 if it is not below the folder. */
static ssize_t path_of_name(int at, const char *name, char path[8192]) {
    char folder_of_name[4096], resolved[PATH_MAX], link[64];
    const char *slash = strrchr(name, '/');
    if (control == &nothing) return 0;
    snprintf(folder_of_name, sizeof folder_of_name, "%.*s", slash ? (int)(slash - name) + 1 : 1, slash ? name : ".");
    int descriptor = openat(at, folder_of_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, resolved, sizeof resolved);
    close(descriptor);
    if (length <= 0) return 0;
    length = snprintf(path, 8192, "%.*s/%s", (int)length, resolved, slash ? slash + 1 : name);
    return is_below_folder(path, length) ? length : 0;
}

int unlinkat(int at, const char *name, int flags) {
    char path[8192];
    ssize_t length = flags & AT_REMOVEDIR ? 0 : path_of_name(at, name, path);
    if (length) count_operation();
    if (!(flags & AT_REMOVEDIR)) goes(at, name);
    int result = (int)syscall(SYS_unlinkat, at, name, flags);
    if (result == 0 && length && log_descriptor >= 0) append_to_log(REMOVE, path, length, 0, NULL, 0);
    return result;
}

int renameat(int old_at, const char *old, int new_at, const char *new) {
    char old_path[8192], new_path[8192];
    ssize_t old_length = path_of_name(old_at, old, old_path), new_length = path_of_name(new_at, new, new_path);
    if (old_length) count_operation();
    goes(new_at, new);
    int result = (int)syscall(SYS_renameat2, old_at, old, new_at, new, 0);
    if (result == 0 && old_length && new_length && log_descriptor >= 0)
        append_to_log(RENAME, old_path, old_length, 0, new_path, new_length);
    return result;
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
    /* With a 64-bit off_t both structures are the same. */
    return statvfs64(path, (struct statvfs64 *)status);
}


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
