/* For the tests of datasets: train files of given text, loaded with a tokenizer that is easily followed. */
#ifndef RH_TESTS_DATA_DATASET_CASE_H
#define RH_TESTS_DATA_DATASET_CASE_H

#include "check.h"

#include "core/file.h"
#include "data/dataset.h"
#include "fake_tokenizer.h"

#include <stdarg.h>

/* Of the train file; main sets it, and removes the file. */
static char path[64];

static inline struct rh_config plain_config(void)
{
	struct rh_config config = {.dataset_text_field = (char *)(uintptr_t) "text", .max_length = 1024};
	config.completion_only_loss = config.assistant_only_loss = RH_UNSET;
	return config;
}

static const struct rh_tokenizer plain_tokenizer = {.has_eos = 1};

static inline int load(const char *content, size_t length, const struct rh_config *config, const struct rh_tokenizer *tokenizer,
                       struct rh_dataset *out)
{
	struct rh_config whole = *config;
	char *files[] = {path};
	whole.train_file = (struct rh_list){files, 1, 1};
	check_ok(rh_file_write_whole(path, content, length));
	return rh_dataset_load(RH_DATASET_TRAIN, &whole, tokenizer, out);
}

/* Loads `content` and expects an error line with all of the strings named after it, up to NULL. */
static inline void expect_error(const char *content, const struct rh_config *config, ...)
{
	struct rh_dataset set;
	rh_error_clear();
	int rc = load(content, strlen(content), config, &plain_tokenizer, &set);
	assert_true(rc < 0);
	const char *line = rh_error(rc);
	va_list parts;
	va_start(parts, config);
	for (const char *part; (part = va_arg(parts, const char *));)
		if (!strstr(line, part))
			fail_msg("'%s' is not in the line: %s", part, line);
	va_end(parts);
	assert_null(strchr(line, '\n'));
	if (strncmp(line, path, strlen(path)))
		fail_msg("the line does not begin with the path: %s", line);
}

/* One character a token of document `index`: '_' masked, '#' trained. */
static inline void expect_mask(const struct rh_dataset *set, int64_t index, const char *mask)
{
	int64_t first = set->document_start[index], length = set->document_start[index + 1] - first;
	char seen[256] = {0};
	assert_true(length < 256);
	for (int64_t i = 0; i < length; i++)
		seen[i] = set->trained[first + i] ? '#' : '_';
	assert_string_equal(seen, mask);
}

static inline void load_ok(const char *content, const struct rh_config *config, const struct rh_tokenizer *tokenizer,
                           struct rh_dataset *out)
{
	check_ok(load(content, strlen(content), config, tokenizer, out));
}

#endif
