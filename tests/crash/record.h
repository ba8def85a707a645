/* A file layer that records what a run does to a folder, and every state that a power cut may leave of it.
 *
 * The model: a change of a file's bytes is on the disk for certain once that file was flushed after it, a change of a directory's names
 * once that directory was. Everything later may be there, or not, in any combination; of a write a part may be there. Renames are
 * atomic. */
#ifndef RH_TESTS_CRASH_RECORD_H
#define RH_TESTS_CRASH_RECORD_H

#include "check.h"

#include "core/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>

enum { RECORD_FILES = 4096, RECORD_ENTRIES = 4096, RECORD_DESCRIPTORS = 1024 };

enum record_kind { RECORD_WRITE, RECORD_TRUNCATE, RECORD_SYNC, RECORD_NAMES };

/* A name that a directory has from now on; inode 0: it has none such. */
struct record_name {
	int dir, inode;
	char name[64];
};

struct record_change {
	enum record_kind kind;
	int inode; /* of bytes: the file; of RECORD_SYNC: file or directory */
	int64_t offset, length;
	char *bytes;
	struct record_name name[2];
	int names, synced; /* a name whose directory is synced by a later RECORD_SYNC; filled when states are made */
};

struct record_inode {
	int is_dir;
	char label[64]; /* the name that it was made under */
	char *bytes;    /* at the beginning */
	int64_t length;
};

static struct {
	char root[256]; /* what lies below is recorded; inode 1 */
	struct record_inode inode[RECORD_FILES];
	int inodes;
	struct record_name begin[RECORD_ENTRIES], now[RECORD_ENTRIES]; /* all directories' names */
	int begins, nows;
	struct record_change *change;
	int changes, capacity;
	int descriptor[RECORD_DESCRIPTORS]; /* inode; 0: not below the root */
} record;

static inline int record_new(int is_dir, const char *label)
{
	assert_true(record.inodes + 1 < RECORD_FILES);
	struct record_inode *inode = &record.inode[++record.inodes];
	*inode = (struct record_inode){.is_dir = is_dir};
	snprintf(inode->label, sizeof inode->label, "%s", label);
	return record.inodes;
}

static inline struct record_name *record_entry(struct record_name *names, int count, int dir, const char *name)
{
	for (int i = 0; i < count; i++)
		if (names[i].dir == dir && !strcmp(names[i].name, name))
			return &names[i];
	return NULL;
}

static inline void record_set(struct record_name *names, int *count, const struct record_name *to)
{
	struct record_name *entry = record_entry(names, *count, to->dir, to->name);
	if (entry) {
		entry->inode = to->inode;
		return;
	}
	assert_true(*count < RECORD_ENTRIES);
	names[(*count)++] = *to;
}

/* The directory that `name` leads to, from a descriptor or the root, and the last part of the name; 0: not below the root. */
static inline int record_dir(int descriptor, const char *name, char last[64])
{
	int dir = 1;
	char path[1024];
	if (descriptor == AT_FDCWD) {
		size_t length = strlen(record.root);
		if (strncmp(name, record.root, length) || (name[length] && name[length] != '/'))
			return 0;
		name += length;
	} else if (!(dir = descriptor < RECORD_DESCRIPTORS ? record.descriptor[descriptor] : 0)) {
		return 0;
	}
	snprintf(path, sizeof path, "%s", name);
	snprintf(last, 64, ".");
	for (char *rest = path, *part; (part = strsep(&rest, "/"));) {
		if (!*part || !strcmp(part, "."))
			continue;
		if (strcmp(last, ".")) {
			struct record_name *entry = record_entry(record.now, record.nows, dir, last);
			if (!entry || !entry->inode)
				return 0;
			dir = entry->inode;
		}
		snprintf(last, 64, "%s", part);
	}
	return dir;
}

static inline int record_lookup(int dir, const char *last)
{
	if (!strcmp(last, "."))
		return dir;
	struct record_name *entry = record_entry(record.now, record.nows, dir, last);
	return entry ? entry->inode : 0;
}

static inline struct record_change *record_add(enum record_kind kind, int inode)
{
	if (record.changes == record.capacity) {
		record.capacity = record.capacity ? record.capacity * 2 : 1024;
		record.change = realloc(record.change, (size_t)record.capacity * sizeof *record.change);
		assert_non_null(record.change);
	}
	struct record_change *change = &record.change[record.changes++];
	*change = (struct record_change){.kind = kind, .inode = inode};
	return change;
}

static inline void record_name_change(struct record_change *change, int dir, const char *name, int inode)
{
	struct record_name *to = &change->name[change->names++];
	*to = (struct record_name){.dir = dir, .inode = inode};
	snprintf(to->name, sizeof to->name, "%s", name);
	record_set(record.now, &record.nows, to);
}

static inline int record_open(struct rh_fs *fs, int at, const char *name, int flags, mode_t mode)
{
	char last[64];
	(void)fs;
	int dir = record_dir(at, name, last), inode = dir ? record_lookup(dir, last) : 0;
	int file = rh_fs_real()->ops->open(rh_fs_real(), at, name, flags, mode);
	if (file < 0)
		return file;
	assert_true(file < RECORD_DESCRIPTORS);
	if (dir && !inode && flags & O_CREAT) {
		inode = record_new(0, last);
		record_name_change(record_add(RECORD_NAMES, 0), dir, last, inode);
	}
	record.descriptor[file] = inode;
	return file;
}

static inline int record_close(struct rh_fs *fs, int file)
{
	(void)fs;
	if (file >= 0 && file < RECORD_DESCRIPTORS)
		record.descriptor[file] = 0;
	return rh_fs_real()->ops->close(rh_fs_real(), file);
}

static inline int64_t record_read(struct rh_fs *fs, int file, void *bytes, size_t length, int64_t offset)
{
	(void)fs;
	return rh_fs_real()->ops->read(rh_fs_real(), file, bytes, length, offset);
}

static inline int64_t record_write(struct rh_fs *fs, int file, const void *bytes, size_t length, int64_t offset)
{
	(void)fs;
	int64_t done = rh_fs_real()->ops->write(rh_fs_real(), file, bytes, length, offset);
	if (done > 0 && record.descriptor[file]) {
		struct record_change *change = record_add(RECORD_WRITE, record.descriptor[file]);
		change->offset = offset;
		change->length = done;
		change->bytes = malloc((size_t)done);
		memcpy(change->bytes, bytes, (size_t)done);
	}
	return done;
}

static inline int record_sync(struct rh_fs *fs, int file)
{
	(void)fs;
	if (record.descriptor[file])
		record_add(RECORD_SYNC, record.descriptor[file]);
	return 0; /* the model flushes, not the disk */
}

static inline int record_truncate(struct rh_fs *fs, int file, int64_t length)
{
	(void)fs;
	int rc = rh_fs_real()->ops->truncate(rh_fs_real(), file, length);
	if (!rc && record.descriptor[file])
		record_add(RECORD_TRUNCATE, record.descriptor[file])->length = length;
	return rc;
}

static inline int record_status(struct rh_fs *fs, int dir, const char *name, int flags, struct stat *out)
{
	(void)fs;
	return rh_fs_real()->ops->status(rh_fs_real(), dir, name, flags, out);
}

static inline int record_make_dir(struct rh_fs *fs, int at, const char *name)
{
	char last[64];
	(void)fs;
	int dir = record_dir(at, name, last), rc = rh_fs_real()->ops->make_dir(rh_fs_real(), at, name);
	if (!rc && dir)
		record_name_change(record_add(RECORD_NAMES, 0), dir, last, record_new(1, last));
	return rc;
}

static inline int record_rename(struct rh_fs *fs, int from_at, const char *from, int to_at, const char *to)
{
	char old[64], new[64];
	(void)fs;
	int from_dir = record_dir(from_at, from, old), to_dir = record_dir(to_at, to, new);
	int rc = rh_fs_real()->ops->rename(rh_fs_real(), from_at, from, to_at, to);
	if (rc || !from_dir || !to_dir)
		return rc;
	int inode = record_lookup(from_dir, old);
	struct record_change *change = record_add(RECORD_NAMES, 0);
	record_name_change(change, from_dir, old, 0);
	record_name_change(change, to_dir, new, inode);
	return 0;
}

static inline int record_unlink(struct rh_fs *fs, int at, const char *name, int flags)
{
	char last[64];
	(void)fs;
	int dir = record_dir(at, name, last), rc = rh_fs_real()->ops->unlink(rh_fs_real(), at, name, flags);
	if (!rc && dir)
		record_name_change(record_add(RECORD_NAMES, 0), dir, last, 0);
	return rc;
}

/* Training and its checkpoints use files side by side: what the disk sees is one order of their calls. */
static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;

#define RECORD_LOCKED(type, name, parameters, ...)                                                                                         \
	static inline type record_locked_##name parameters                                                                                 \
	{                                                                                                                                  \
		pthread_mutex_lock(&record_lock);                                                                                          \
		type result = record_##name(__VA_ARGS__);                                                                                  \
		pthread_mutex_unlock(&record_lock);                                                                                        \
		return result;                                                                                                             \
	}
RECORD_LOCKED(int, open, (struct rh_fs * fs, int at, const char *name, int flags, mode_t mode), fs, at, name, flags, mode)
RECORD_LOCKED(int, close, (struct rh_fs * fs, int file), fs, file)
RECORD_LOCKED(int64_t, write, (struct rh_fs * fs, int file, const void *bytes, size_t length, int64_t offset), fs, file, bytes, length,
              offset)
RECORD_LOCKED(int, sync, (struct rh_fs * fs, int file), fs, file)
RECORD_LOCKED(int, truncate, (struct rh_fs * fs, int file, int64_t length), fs, file, length)
RECORD_LOCKED(int, make_dir, (struct rh_fs * fs, int at, const char *name), fs, at, name)
RECORD_LOCKED(int, rename, (struct rh_fs * fs, int from_at, const char *from, int to_at, const char *to), fs, from_at, from, to_at, to)
RECORD_LOCKED(int, unlink, (struct rh_fs * fs, int at, const char *name, int flags), fs, at, name, flags)

static const struct rh_fs_ops record_ops = {record_locked_open,   record_locked_close,    record_read,   record_locked_write,
                                            record_locked_sync,   record_locked_truncate, record_status, record_locked_make_dir,
                                            record_locked_rename, record_locked_unlink};
static struct rh_fs record_fs = {&record_ops};

/* What lies below a directory when the recording begins: on the disk for certain. */
static inline void record_tree(int dir, const char *path)
{
	DIR *entries = opendir(path);
	assert_non_null(entries);
	for (struct dirent *entry; (entry = readdir(entries));) {
		char child[1024];
		struct stat info;
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
		assert_int_equal(lstat(child, &info), 0);
		int inode = record_new(S_ISDIR(info.st_mode), entry->d_name);
		struct record_name name = {.dir = dir, .inode = inode};
		snprintf(name.name, sizeof name.name, "%.63s", entry->d_name);
		record_set(record.begin, &record.begins, &name);
		record_set(record.now, &record.nows, &name);
		if (S_ISDIR(info.st_mode)) {
			record_tree(inode, child);
			continue;
		}
		record.inode[inode].length = info.st_size;
		record.inode[inode].bytes = malloc((size_t)info.st_size + 1);
		int file = open(child, O_RDONLY);
		assert_int_equal(read(file, record.inode[inode].bytes, (size_t)info.st_size), info.st_size);
		close(file);
	}
	closedir(entries);
}

static inline void record_begin(const char *root)
{
	memset(&record, 0, sizeof record);
	snprintf(record.root, sizeof record.root, "%s", root);
	record_new(1, "root");
	record_tree(1, root);
	rh_fs_use(&record_fs);
}

static inline void record_end(void)
{
	rh_fs_use(NULL);
}

static inline void record_free(void)
{
	for (int i = 1; i <= record.inodes; i++)
		free(record.inode[i].bytes);
	for (int i = 0; i < record.changes; i++)
		free(record.change[i].bytes);
	free(record.change);
	memset(&record, 0, sizeof record);
}

#endif
