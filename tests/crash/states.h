/* States that a power cut may leave of a recorded folder, written out as files. */
#ifndef RH_TESTS_CRASH_STATES_H
#define RH_TESTS_CRASH_STATES_H

#include "crash/record.h"

/* Which of the changes that are not flushed have reached the disk. */
enum states_way {
	STATES_NONE,     /* none of them */
	STATES_ALL,      /* all: a kill, not a power cut */
	STATES_NAMES,    /* names, no bytes */
	STATES_BYTES,    /* bytes, no names */
	STATES_LAST_ONE, /* the latest alone: reordered before all others */
	STATES_RANDOM,   /* any */
	STATES_TORN,     /* any, and of each write a part */
	STATES_WAYS
};

struct states_file {
	char *bytes;
	int64_t length;
};

/* A flush is left out: those of one label (a file's or directory's name), to show that the flush is needed. NULL: none is. */
static const char *states_left_out;

static inline int states_is_flush(const struct record_change *change, int inode)
{
	if (change->kind != RECORD_SYNC || change->inode != inode)
		return 0;
	return !states_left_out || !strstr(record.inode[inode].label, states_left_out);
}

/* For each change before `cut`: 1 where a flush between it and `cut` has put it on the disk. */
static inline void states_flushed(int cut, char *flushed)
{
	static char clean[RECORD_FILES]; /* inodes flushed after where we are, going backwards */
	memset(clean, 0, sizeof clean);
	for (int i = cut - 1; i >= 0; i--) {
		const struct record_change *change = &record.change[i];
		if (change->kind == RECORD_SYNC) {
			clean[change->inode] |= (char)states_is_flush(change, change->inode);
			flushed[i] = 1;
		} else if (change->kind == RECORD_NAMES) {
			flushed[i] = clean[change->name[change->names - 1].dir];
		} else {
			flushed[i] = clean[change->inode];
		}
	}
}

static inline int states_chosen(const struct record_change *change, int is_last, enum states_way way, uint64_t *seed)
{
	switch (way) {
	case STATES_NONE:
		return 0;
	case STATES_ALL:
		return 1;
	case STATES_NAMES:
		return change->kind == RECORD_NAMES;
	case STATES_BYTES:
		return change->kind != RECORD_NAMES;
	case STATES_LAST_ONE:
		return is_last;
	default:
		return (int)(check_random(seed) & 1);
	}
}

static inline void states_apply_bytes(struct states_file *file, const struct record_change *change, int64_t length)
{
	int64_t end = change->kind == RECORD_TRUNCATE ? change->length : change->offset + length;
	int64_t grown = change->kind == RECORD_TRUNCATE || end > file->length ? end : file->length;
	if (grown != file->length) {
		file->bytes = realloc(file->bytes, (size_t)grown + 1);
		if (grown > file->length)
			memset(file->bytes + file->length, 0, (size_t)(grown - file->length));
		file->length = grown;
	}
	if (change->kind == RECORD_WRITE)
		memcpy(file->bytes + change->offset, change->bytes, (size_t)length);
}

static inline void states_write_dir(const struct record_name *names, int count, const struct states_file *file, int dir, const char *path)
{
	assert_true(mkdir(path, 0777) == 0);
	for (int i = 0; i < count; i++) {
		char child[1024];
		if (names[i].dir != dir || !names[i].inode)
			continue;
		snprintf(child, sizeof child, "%s/%s", path, names[i].name);
		if (record.inode[names[i].inode].is_dir) {
			states_write_dir(names, count, file, names[i].inode, child);
			continue;
		}
		const struct states_file *content = &file[names[i].inode];
		int out = open(child, O_WRONLY | O_CREAT | O_TRUNC, 0666);
		assert_true(out >= 0);
		assert_int_equal(write(out, content->bytes ? content->bytes : "", (size_t)content->length), content->length);
		close(out);
	}
}

/* The state after `cut` changes, written to `path`, which is made. */
static inline void states_make(int cut, enum states_way way, uint64_t *seed, const char *path)
{
	static struct record_name names[RECORD_ENTRIES];
	static struct states_file file[RECORD_FILES];
	char *flushed = calloc((size_t)cut + 1, 1);
	int count = record.begins, last = -1;
	memcpy(names, record.begin, sizeof names);
	for (int i = 1; i <= record.inodes; i++) {
		file[i] = (struct states_file){malloc((size_t)record.inode[i].length + 1), record.inode[i].length};
		memcpy(file[i].bytes, record.inode[i].bytes ? record.inode[i].bytes : "", (size_t)record.inode[i].length);
	}
	states_flushed(cut, flushed);
	for (int i = 0; i < cut; i++)
		last = flushed[i] ? last : i;
	for (int i = 0; i < cut; i++) {
		const struct record_change *change = &record.change[i];
		if (change->kind == RECORD_SYNC || (!flushed[i] && !states_chosen(change, i == last, way, seed)))
			continue;
		if (change->kind == RECORD_NAMES) {
			for (int n = 0; n < change->names; n++)
				record_set(names, &count, &change->name[n]);
			continue;
		}
		int64_t length = change->length;
		if (!flushed[i] && way == STATES_TORN && change->kind == RECORD_WRITE)
			length = check_random(seed) % (length + 1);
		states_apply_bytes(&file[change->inode], change, length);
	}
	states_write_dir(names, count, file, 1, path);
	for (int i = 1; i <= record.inodes; i++)
		free(file[i].bytes);
	free(flushed);
}

#endif
