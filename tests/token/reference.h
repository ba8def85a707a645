/* The strings, tokenizers and figures that tests/reference/token_*.py wrote, as the tests of this room use them. */
#ifndef RH_TESTS_TOKEN_REFERENCE_H
#define RH_TESTS_TOKEN_REFERENCE_H

#include "check.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "token/tokenizer.h"

#include <string.h>
#include <unistd.h>

static inline uint32_t crc32_of(uint32_t crc, const void *bytes, size_t length)
{
	crc = ~crc;
	for (size_t i = 0; i < length; i++) {
		crc ^= ((const unsigned char *)bytes)[i];
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
	}
	return ~crc;
}

/* A folder of its own under /tmp; taken away by leave_folder. */
static inline void make_folder(char path[32])
{
	strcpy(path, "/tmp/rh-token-XXXXXX");
	assert_non_null(mkdtemp(path));
}

static inline void leave_folder(const char *path)
{
	check_ok(rh_dir_remove(path));
}

static inline void put_file(const char *folder, const char *name, const char *bytes, size_t length)
{
	char *path = rh_path_join(folder, name);
	FILE *file = fopen(path, "wb"); /* not rh_file_write_whole: thousands of these need no fsync */
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, length, file), length);
	fclose(file);
	rh_free(path);
}

static inline void put_json(const char *folder, const char *name, const json_t *value)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	assert_non_null(text);
	put_file(folder, name, text, strlen(text));
	free(text);
}

/* What tests/corpus/token_variants.json calls `index`: a whole tokenizer.json, the caller's. NULL past the last. */
static inline json_t *variant_at(json_t *file, size_t index, const char **name)
{
	const json_t *variant = json_array_get(json_object_get(file, "variants"), index);
	if (!variant)
		return NULL;
	*name = json_string_value(json_object_get(variant, "name"));
	json_t *whole = json_deep_copy(json_object_get(variant, "tokenizer"));
	const char *model = json_string_value(json_object_get(variant, "model"));
	json_object_set(whole, "model", json_object_get(json_object_get(file, "models"), model));
	return whole;
}

#endif
