/* A disk that dies, fails or takes notes: loaded before libc, it stands between a process and one folder.

   Every call that changes what is on the disk is a step: making, writing, cutting, syncing, renaming, removing. The
   process counts them, and can be killed before, in the middle of or after one; or one can fail; or all are written
   down, with their data, so that every state that a loss of power could leave can be made again. Memory mapped from a
   file is seen when it is synced. Only for Linux with glibc, 64 bits. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL_BEFORE, KILL_HALF, KILL_AFTER, FAIL, FAIL_HALF };
enum { FILES = 1 << 16, MAPPINGS = 4096, PAGE = 4096 };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static size_t folder_length;
static int journal = -1, action, failure, lasting;
static long steps, at;
static struct { uint64_t device, inode; } files[FILES]; /* open addressing; those below the folder that were opened */
static struct { char *start; size_t length; uint64_t inode; off_t offset; char *seen; } mappings[MAPPINGS];

/* The child's own calls, by ctypes. */

void disk_watch(const char *path) {
    folder_length = strlen(path);
    memcpy(folder, path, folder_length + 1);
}

void disk_record(const char *path) {
    journal = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (journal < 0) abort();
}

void disk_arm(int what, long when, int error, int for_ever) {
    action = what; at = when; failure = error; lasting = for_ever; steps = 0;
}

long disk_steps(void) { return steps; }

static void put_all(const void *data, size_t length) {
    while (length) {
        ssize_t done = syscall(SYS_write, journal, data, length);
        if (done < 0) abort();
        data = (const char *)data + done;
        length -= done;
    }
}

static void note(char kind, uint64_t inode, uint64_t offset, const void *data, uint64_t length) {
    if (journal < 0) return;
    struct { uint64_t kind, inode, offset, length; } head = {(uint64_t)kind, inode, offset, length};
    put_all(&head, sizeof head);
    put_all(data, length);
}

void disk_mark(const char *label) {
    pthread_mutex_lock(&turn);
    note('!', 0, 0, label, strlen(label));
    pthread_mutex_unlock(&turn);
}

/* Which files. */

static int below(const char *path) {
    return folder_length && !strncmp(path, folder, folder_length) && (!path[folder_length] || path[folder_length] == '/');
}

static int absolute(int directory, const char *path, char *found) {
    size_t length = 0;
    if (!folder_length) return 0;
    if (*path != '/') {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t read = syscall(SYS_readlink, directory == AT_FDCWD ? "/proc/self/cwd" : link, found, PATH_MAX - 1);
        if (read <= 0) return 0;
        length = read;
        found[length++] = '/';
    }
    if (length + strlen(path) >= PATH_MAX) return 0;
    strcpy(found + length, path);
    return below(found);
}

static int slot(uint64_t device, uint64_t inode) {
    unsigned place = (inode * 0x9E3779B97F4A7C15ull) >> 48;
    while (files[place % FILES].inode && (files[place % FILES].inode != inode || files[place % FILES].device != device)) place++;
    return place % FILES;
}

static uint64_t watched(int descriptor) {
    struct stat found;
    int error = errno;
    if (!folder_length) return 0;
    if (fstat(descriptor, &found)) { errno = error; return 0; }
    return files[slot(found.st_dev, found.st_ino)].inode;
}

static void remember(int descriptor, const char *path, int flags) {
    struct stat found;
    if (fstat(descriptor, &found)) return;
    int place = slot(found.st_dev, found.st_ino);
    files[place].device = found.st_dev;
    files[place].inode = found.st_ino;
    note(S_ISDIR(found.st_mode) ? 'd' : 'o', found.st_ino, flags & O_TRUNC ? 1 : 0, path, strlen(path));
}

/* Steps. */

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* 0: do it. Above 0: fail with that. Below: do half of it, or do it, and then call `after`. */
static int step(void) {
    steps++;
    if (action == COUNT || steps < at) return 0;
    if (action == FAIL || action == FAIL_HALF) {
        if (steps == at && action == FAIL_HALF) return -1;
        return steps == at || lasting ? failure : 0;
    }
    if (steps > at) return 0;
    if (action == KILL_BEFORE) die();
    return action == KILL_HALF ? -1 : -2;
}

static void after(int told) {
    if (told < 0 && (action == KILL_HALF || action == KILL_AFTER)) die();
}

/* What has no half. */
static int whole_step(void) {
    int told = step();
    if (told == -1 && action == KILL_HALF) die();
    return told == -1 ? failure : told;
}

#define STEP(...)                                                         \
    long result = -1;                                                     \
    pthread_mutex_lock(&turn);                                            \
    int told = whole_step();                                              \
    if (told > 0) errno = told;                                           \
    else { __VA_ARGS__; int error = errno; after(told); errno = error; }  \
    pthread_mutex_unlock(&turn);                                          \
    return result;

/* Opening. */

static int opened(int directory, const char *path, int flags, mode_t mode) {
    char place[PATH_MAX];
    if (!absolute(directory, path, place)) return syscall(SYS_openat, directory, path, flags, mode);
    struct stat found;
    int there = !stat(place, &found), changes = (flags & O_CREAT && !there) || (flags & O_TRUNC && there && found.st_size);
    errno = 0;
    pthread_mutex_lock(&turn);
    int told = changes ? whole_step() : 0, result = -1;
    if (told > 0) errno = told;
    else {
        result = syscall(SYS_openat, directory, path, flags, mode);
        int error = errno;
        if (result >= 0) remember(result, place, flags);
        after(told);
        errno = error;
    }
    pthread_mutex_unlock(&turn);
    return result;
}

#define MODE                                   \
    mode_t mode = 0;                           \
    if (flags & (O_CREAT | __O_TMPFILE)) {     \
        va_list rest;                          \
        va_start(rest, flags);                 \
        mode = va_arg(rest, mode_t);           \
        va_end(rest);                          \
    }

int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int directory, const char *path, int flags, ...) { MODE return opened(directory, path, flags, mode); }
int openat64(int directory, const char *path, int flags, ...) { MODE return opened(directory, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* Writing. */

static ssize_t put(int descriptor, const void *data, size_t length, off_t offset, int positioned, uint64_t inode) {
    pthread_mutex_lock(&turn);
    int told = step();
    ssize_t result = -1;
    if (told > 0) errno = told;
    else {
        size_t some = told == -1 ? length / 2 : length;
        if (!positioned) {
            struct stat found;
            int append = fcntl(descriptor, F_GETFL) & O_APPEND;
            offset = append && !fstat(descriptor, &found) ? found.st_size : lseek(descriptor, 0, SEEK_CUR);
        }
        result = positioned ? syscall(SYS_pwrite64, descriptor, data, some, offset)
                            : syscall(SYS_write, descriptor, data, some);
        int error = errno;
        if (result > 0) note('w', inode, offset, data, result);
        after(told);
        if (!result && length) { result = -1; error = failure; }
        errno = error;
    }
    pthread_mutex_unlock(&turn);
    return result;
}

ssize_t write(int descriptor, const void *data, size_t length) {
    uint64_t inode = watched(descriptor);
    return inode ? put(descriptor, data, length, 0, 0, inode) : syscall(SYS_write, descriptor, data, length);
}

ssize_t pwrite64(int descriptor, const void *data, size_t length, off_t offset) {
    uint64_t inode = watched(descriptor);
    return inode ? put(descriptor, data, length, offset, 1, inode)
                 : syscall(SYS_pwrite64, descriptor, data, length, offset);
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset) {
    return pwrite64(descriptor, data, length, offset);
}

static ssize_t gathered(int descriptor, const struct iovec *parts, int count, off_t offset, int positioned) {
    ssize_t done = 0;
    for (int part = 0; part < count; part++) {
        ssize_t some = positioned ? pwrite64(descriptor, parts[part].iov_base, parts[part].iov_len, offset + done)
                                  : write(descriptor, parts[part].iov_base, parts[part].iov_len);
        if (some < 0) return done ? done : -1;
        done += some;
        if ((size_t)some < parts[part].iov_len) break;
    }
    return done;
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return watched(descriptor) ? gathered(descriptor, parts, count, 0, 0) : syscall(SYS_writev, descriptor, parts, count);
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off_t offset) {
    return gathered(descriptor, parts, count, offset, 1);
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset) {
    return gathered(descriptor, parts, count, offset, 1);
}

ssize_t pwritev2(int descriptor, const struct iovec *parts, int count, off_t offset, int flags) {
    return gathered(descriptor, parts, count, offset, offset != -1);
}

/* The kernel's copying, made of reads and writes that are seen. */

static ssize_t copied(int target, off_t *target_offset, int source, off_t *source_offset, size_t length) {
    char data[65536];
    size_t some = length < sizeof data ? length : sizeof data;
    ssize_t got = source_offset ? pread(source, data, some, *source_offset) : read(source, data, some);
    if (got <= 0) return got;
    ssize_t done = target_offset ? pwrite64(target, data, got, *target_offset) : write(target, data, got);
    if (done > 0 && source_offset) *source_offset += done;
    if (done > 0 && target_offset) *target_offset += done;
    return done;
}

ssize_t copy_file_range(int source, off_t *from, int target, off_t *to, size_t length, unsigned flags) {
    return watched(target) ? copied(target, to, source, from, length)
                           : syscall(SYS_copy_file_range, source, from, target, to, length, flags);
}

ssize_t sendfile64(int target, int source, off_t *from, size_t length) {
    return watched(target) ? copied(target, NULL, source, from, length)
                           : syscall(SYS_sendfile, target, source, from, length);
}

ssize_t sendfile(int target, int source, off_t *from, size_t length) { return sendfile64(target, source, from, length); }

/* C's streams write inside libc; those below the folder write here. */

static ssize_t stream_write(void *cookie, const char *data, size_t length) {
    size_t done = 0;
    while (done < length) {
        ssize_t some = write((int)(intptr_t)cookie, data + done, length - done);
        if (some < 0) return done;
        done += some;
    }
    return done;
}

static ssize_t stream_read(void *cookie, char *data, size_t length) { return read((int)(intptr_t)cookie, data, length); }

static int stream_seek(void *cookie, off64_t *offset, int whence) {
    off_t found = lseek((int)(intptr_t)cookie, *offset, whence);
    if (found < 0) return -1;
    *offset = found;
    return 0;
}

static int stream_close(void *cookie) { return close((int)(intptr_t)cookie); }

static FILE *stream(const char *name, const char *path, const char *mode) {
    char place[PATH_MAX];
    if (!absolute(AT_FDCWD, path, place) || (*mode == 'r' && !strchr(mode, '+'))) {
        FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, name);
        return real(path, mode);
    }
    int access = strchr(mode, '+') ? O_RDWR : O_WRONLY;
    int how = *mode == 'w' ? O_CREAT | O_TRUNC : *mode == 'a' ? O_CREAT | O_APPEND : 0;
    int descriptor = open64(path, access | how, 0666);
    if (descriptor < 0) return NULL;
    cookie_io_functions_t calls = {stream_read, stream_write, stream_seek, stream_close};
    return fopencookie((void *)(intptr_t)descriptor, mode, calls);
}

FILE *fopen(const char *path, const char *mode) { return stream("fopen", path, mode); }
FILE *fopen64(const char *path, const char *mode) { return stream("fopen64", path, mode); }

/* Cutting, syncing, mapping. */

int ftruncate64(int descriptor, off_t length) {
    uint64_t inode = watched(descriptor);
    if (!inode) return syscall(SYS_ftruncate, descriptor, length);
    STEP(result = syscall(SYS_ftruncate, descriptor, length); if (!result) note('t', inode, length, "", 0))
}

int ftruncate(int descriptor, off_t length) { return ftruncate64(descriptor, length); }

int posix_fallocate64(int descriptor, off_t offset, off_t length) {
    struct stat found;
    if (fstat(descriptor, &found)) return errno;
    return found.st_size < offset + length && ftruncate64(descriptor, offset + length) ? errno : 0;
}

int posix_fallocate(int descriptor, off_t offset, off_t length) { return posix_fallocate64(descriptor, offset, length); }

/* Pages of a mapping that changed since they were looked at last; they are on the disk now. */
static void note_mapping(int number, char *start, size_t length) {
    for (char *page = start; page < start + length; page += PAGE) {
        size_t place = page - mappings[number].start, size = mappings[number].length - place;
        if (size > PAGE) size = PAGE;
        if (memcmp(page, mappings[number].seen + place, size)) {
            memcpy(mappings[number].seen + place, page, size);
            note('m', mappings[number].inode, mappings[number].offset + place, page, size);
        }
    }
}

static int synced(int call, int descriptor) {
    uint64_t inode = watched(descriptor);
    if (!inode) return syscall(call, descriptor);
    STEP(
        for (int number = 0; number < MAPPINGS && journal >= 0; number++)
            if (mappings[number].start && mappings[number].inode == inode)
                note_mapping(number, mappings[number].start, mappings[number].length);
        result = syscall(call, descriptor);
        if (!result) note('s', inode, 0, "", 0)
    )
}

int fsync(int descriptor) { return synced(SYS_fsync, descriptor); }
int fdatasync(int descriptor) { return synced(SYS_fdatasync, descriptor); }

int msync(void *start, size_t length, int flags) {
    STEP(
        for (int number = 0; number < MAPPINGS && journal >= 0; number++) {
            char *from = mappings[number].start, *to = from + mappings[number].length;
            char *first = (char *)start > from ? start : from, *last = (char *)start + length < to ? (char *)start + length : to;
            if (from && first < last && flags & MS_SYNC) note_mapping(number, first, last - first);
        }
        result = syscall(SYS_msync, start, length, flags)
    )
}

void *mmap64(void *start, size_t length, int protection, int flags, int descriptor, off_t offset) {
    void *result = (void *)syscall(SYS_mmap, start, length, protection, flags, descriptor, offset);
    uint64_t inode = journal < 0 || descriptor < 0 || result == MAP_FAILED ? 0 : watched(descriptor);
    if (!inode || !(flags & MAP_SHARED) || !(protection & PROT_WRITE)) return result;
    pthread_mutex_lock(&turn);
    for (int number = 0; number < MAPPINGS; number++)
        if (!mappings[number].start) {
            char *seen = (char *)syscall(SYS_mmap, NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            ssize_t done = 0, some;
            while ((some = syscall(SYS_pread64, descriptor, seen + done, length - done, offset + done)) > 0) done += some;
            mappings[number].length = length;
            mappings[number].inode = inode;
            mappings[number].offset = offset;
            mappings[number].seen = seen;
            mappings[number].start = result;
            break;
        }
    pthread_mutex_unlock(&turn);
    return result;
}

void *mmap(void *start, size_t length, int protection, int flags, int descriptor, off_t offset) {
    return mmap64(start, length, protection, flags, descriptor, offset);
}

int munmap(void *start, size_t length) {
    if (journal >= 0) {
        pthread_mutex_lock(&turn);
        for (int number = 0; number < MAPPINGS; number++)
            if (mappings[number].start == start) {
                for (size_t place = 0; place < mappings[number].length; place += PAGE) {
                    size_t size = mappings[number].length - place < PAGE ? mappings[number].length - place : PAGE;
                    if (memcmp((char *)start + place, mappings[number].seen + place, size))
                        note('w', mappings[number].inode, mappings[number].offset + place, (char *)start + place, size);
                }
                mappings[number].start = NULL;
                syscall(SYS_munmap, mappings[number].seen, mappings[number].length);
            }
        pthread_mutex_unlock(&turn);
    }
    return syscall(SYS_munmap, start, length);
}

/* Names. */

static int renamed(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    char places[2 * PATH_MAX], target[PATH_MAX];
    int seen = absolute(from_directory, from, places) | absolute(to_directory, to, target);
    if (!seen) return syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    size_t length = strlen(places) + 1;
    strcpy(places + length, target);
    STEP(
        result = syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
        if (!result) note('r', 0, 0, places, length + strlen(target))
    )
}

int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return renamed(a, from, b, to, flags); }

int unlinkat(int directory, const char *path, int flags) {
    char place[PATH_MAX];
    if (!absolute(directory, path, place)) return syscall(SYS_unlinkat, directory, path, flags);
    STEP(result = syscall(SYS_unlinkat, directory, path, flags); if (!result) note('u', 0, 0, place, strlen(place)))
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int remove(const char *path) {
    struct stat found;
    return unlinkat(AT_FDCWD, path, !lstat(path, &found) && S_ISDIR(found.st_mode) ? AT_REMOVEDIR : 0);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    char place[PATH_MAX];
    if (!absolute(directory, path, place)) return syscall(SYS_mkdirat, directory, path, mode);
    STEP(result = syscall(SYS_mkdirat, directory, path, mode); if (!result) note('k', 0, 0, place, strlen(place)))
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
