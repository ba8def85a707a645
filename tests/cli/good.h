/* A run that works, to be spoilt: refused, it must leave everything as it was. */
#ifndef RH_TESTS_CLI_GOOD_H
#define RH_TESTS_CLI_GOOD_H

#include "cli/runner.h"

#define ROWS                                                                                                                               \
	"{\"prompt\": \"the cat \", \"completion\": \"sat here\"}\n{\"prompt\": \"a dog \", \"completion\": \"ran away\"}\n"               \
	"{\"prompt\": \"one two \", \"completion\": \"three\"}\n{\"prompt\": \"red \", \"completion\": \"green blue\"}\n"

/* A model directory with a tokenizer, rows, and a configuration that trains on them into a directory not there yet. */
static inline void make_good(struct scratch *scratch)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	copy_model(dir);
	copy_file(MODELS "gguf-llama/model.gguf", path_of("%s/model.gguf", dir));
	write_text(path_of("%s/rows.jsonl", dir), ROWS);
	write_text(path_of("%s/run.yaml", dir),
	           path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\noutput_dir: %s/out\n"
	                   "max_length: 64\nmax_steps: 2\nper_device_train_batch_size: 2\nallow: [duplicates, overlap]\n",
	                   dir, dir, dir));
}

/* '@' in a line stands for the scratch directory. */
static inline void fill_in(const struct scratch *scratch, const char *line, char *out, size_t bytes)
{
	size_t used = 0;
	for (const char *at = line; *at && used + sizeof scratch->dir < bytes; at++) {
		if (*at == '@')
			used += (size_t)snprintf(out + used, bytes - used, "%s", scratch->dir);
		else
			out[used++] = *at;
	}
	out[used] = 0;
}

static inline void refused(const struct scratch *scratch, const char *line, const char *part)
{
	char full[2048];
	struct ran ran;
	uint64_t before = tree_hash(scratch->dir);
	fill_in(scratch, line, full, sizeof full);
	run_start(scratch, full, 0, &ran);
	run_wait(&ran);
	check_failed(&ran, part);
	if (tree_hash(scratch->dir) != before)
		fail_msg("something was written by: %s", full);
	run_free(&ran);
}

static inline size_t find_in(const char *path, const char *text)
{
	size_t length;
	char *bytes = read_bytes(path, &length), *at = memmem(bytes, length, text, strlen(text));
	assert_non_null(at);
	size_t offset = (size_t)(at - bytes);
	free(bytes);
	return offset;
}

#endif
