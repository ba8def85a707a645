/* For the tests of sources: copies of reference models, spoiled. */
#ifndef RH_TESTS_CKPT_SOURCE_CASE_H
#define RH_TESTS_CKPT_SOURCE_CASE_H

#include "scratch.h"

#include "ckpt/source_internal.h"
#include "core/text.h"

static inline int64_t elements(const int64_t *shape, int rank)
{
	int64_t count = 1;
	for (int d = 0; d < rank; d++)
		count *= shape[d];
	return count;
}

/* A copy of a reference model's directory to spoil. */
static inline void copy_model(const char *model, const char *dir)
{
	static const char *const names[] = {"config.json",
	                                    "model.safetensors",
	                                    "model.safetensors.index.json",
	                                    "model-00001-of-00003.safetensors",
	                                    "model-00002-of-00003.safetensors",
	                                    "model-00003-of-00003.safetensors"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char from[160], to[160];
		snprintf(from, sizeof from, REFERENCE "%s/%s", model, names[i]);
		snprintf(to, sizeof to, "%s/%s", dir, names[i]);
		if (rh_file_exists(from))
			check_ok(rh_file_copy(from, to));
	}
}

/* dir/name with the first `from` replaced by `to`. */
static inline void replace(const char *dir, const char *name, const char *from, const char *to)
{
	char *path = rh_path_join(dir, name);
	struct rh_bytes map;
	check_ok(rh_file_load(path, &map));
	const char *at = memmem(map.bytes, map.length, from, strlen(from));
	assert_non_null(at);
	struct rh_text text = {0};
	check_ok(rh_text_append(&text, map.bytes, (size_t)(at - map.bytes)));
	check_ok(rh_text_append(&text, to, strlen(to)));
	at += strlen(from);
	check_ok(rh_text_append(&text, at, map.length - (size_t)(at - map.bytes)));
	rh_bytes_free(&map);
	scratch_write(dir, name, text.bytes, text.length);
	rh_text_free(&text);
	rh_free(path);
}

static inline int open_source(const char *path)
{
	struct rh_source *source;
	int rc = rh_source_open(path, &source);
	if (!rc)
		rh_source_close(source);
	return rc;
}

/* Copies `model`, replaces, and expects this line. */
static inline void check_spoiled(const char *model, const char *name, const char *from, const char *to, const char *part)
{
	char dir[64];
	scratch_make(dir);
	copy_model(model, dir);
	check_ok(open_source(dir));
	replace(dir, name, from, to);
	check_refused(open_source(dir), part);
	check_ok(rh_dir_remove(dir));
}

#endif
