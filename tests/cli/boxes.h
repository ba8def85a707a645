/* Boxes of a small model for tests of the program: their files, keys and configurations, and what they must have computed. */
#ifndef RH_TESTS_CLI_BOXES_H
#define RH_TESTS_CLI_BOXES_H

#include "cli/runner.h"

#include "ckpt/safetensors.h"
#include "limit_time.h"
#include "port.h"
#include "tensor_bytes.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

enum { BOXES_MOST = 4 };

#define ROWS                                                                                                                               \
	"{\"prompt\": \"the cat \", \"completion\": \"sat here\"}\n{\"prompt\": \"a dog \", \"completion\": \"ran away\"}\n"               \
	"{\"prompt\": \"one two \", \"completion\": \"three\"}\n{\"prompt\": \"red \", \"completion\": \"green blue\"}\n"                  \
	"{\"prompt\": \"I saw \", \"completion\": \"nobody at all\"}\n{\"prompt\": \"rain \", \"completion\": \"falls\"}\n"                \
	"{\"prompt\": \"go \", \"completion\": \"on\"}\n"

/* How two boxes find each other: the lower one listens, the other connects, perhaps to something that stands between them. */
struct box_wire {
	char listens[64], connects[64];
};

static inline struct box_wire free_wire(void)
{
	struct box_wire out;
	int port = free_port();
	snprintf(out.listens, sizeof out.listens, "127.0.0.1:%d", port);
	snprintf(out.connects, sizeof out.connects, "127.0.0.1:%d", port);
	return out;
}

/* Where a test names no cuts: they must not depend on what else this machine does while the boxes measure their line. */
#define FAST_LINES "link_mbit_per_second: 1e6\nlink_latency_ms: 0\n"

static inline void make_files(struct scratch *scratch)
{
	scratch_open(scratch);
	copy_model(scratch->dir);
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 5");
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"layer_types\"", "\"unused\"");
	write_text(path_of("%s/rows.jsonl", scratch->dir), ROWS);
}

/* A model of five layers, four with experts, in place of make_files'; its tokenizer is the same. */
static inline void write_experts(const struct scratch *scratch)
{
	const char *path = path_of("%s/hf/config.json", scratch->dir);
	copy_file("tests/reference/models/gguf-qwen3-moe/config.json", path);
	edit_file(path, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 5");
}

/* held.jsonl, where it is there, is evaluated on. box 0: one box
 * alone. `keys`: more lines; those of boxes name a mode unless it is sync-pp. wire[k]: from box k + 1 to the next. */
static inline void write_config(const struct scratch *scratch, const char *keys, int boxes, int box, const struct box_wire *wire)
{
	char text[2048];
	int used = snprintf(text, sizeof text,
	                    "config_name: %s/hf\noutput_dir: %s/out%d\nmax_length: 64\nmax_steps: 6\nper_device_train_batch_size: 1\n"
	                    "gradient_accumulation_steps: 4\nlearning_rate: 1.0e-3\nlogging_steps: 1\n"
	                    "allow: [duplicates, overlap]\n%s",
	                    scratch->dir, scratch->dir, box, keys);
	if (box < 2)
		used += snprintf(text + used, sizeof text - (size_t)used, "train_file: %s/rows.jsonl\n", scratch->dir);
	if (box < 2 && rh_file_exists(path_of("%s/held.jsonl", scratch->dir)))
		used += snprintf(text + used, sizeof text - (size_t)used, "validation_file: %s/held.jsonl\n", scratch->dir);
	if (box)
		used += snprintf(text + used, sizeof text - (size_t)used, "%sboxes: %d\nbox: %d\n",
		                 strstr(keys, "mode: ") ? "" : "mode: sync-pp\n", boxes, box);
	if (box && !strstr(keys, "box_cuts: ") && !strstr(keys, "link_mbit_per_second: "))
		used += snprintf(text + used, sizeof text - (size_t)used, FAST_LINES);
	if (box > 1)
		used += snprintf(text + used, sizeof text - (size_t)used, "link_below: %s\n", wire[box - 2].connects);
	if (box && box < boxes)
		used += snprintf(text + used, sizeof text - (size_t)used, "link_above: listen:%s\n", wire[box - 1].listens);
	assert_true(used < (int)sizeof text);
	write_text(path_of("%s/run%d.yaml", scratch->dir, box), text);
}

/* Keys of the boxes, made by the program: what each box writes into its configuration is in secret[box - 1]. */
static inline void make_keys(const struct scratch *scratch, int boxes, char secret[BOXES_MOST][512])
{
	char hash[BOXES_MOST][80];
	for (int k = 0; k < boxes; k++) {
		struct ran ran = run_line(scratch, "keys --link_identity %s/box%d.pem", scratch->dir, k + 1);
		assert_int_equal(ran.status, 0);
		snprintf(hash[k], sizeof hash[k], "%.64s", ran.out);
		run_free(&ran);
	}
	for (int k = 0; k < boxes; k++) {
		int used = snprintf(secret[k], 512, "link_identity: %s/box%d.pem\n", scratch->dir, k + 1);
		if (k)
			used += snprintf(secret[k] + used, 512 - (size_t)used, "link_peer_below: \"%s\"\n", hash[k - 1]);
		if (k + 1 < boxes)
			snprintf(secret[k] + used, 512 - (size_t)used, "link_peer_above: \"%s\"\n", hash[k + 1]);
	}
}

/* Each tensor of the files of so many boxes is the one box's, and together they have all of them, and so many twice. */
static inline void check_weights_copied(const struct scratch *scratch, const char *file, int boxes, int copies)
{
	struct rh_safetensors *whole, *part;
	int64_t found = 0;
	check_ok(rh_safetensors_open(path_of("%s/out0/%s", scratch->dir, file), &whole));
	for (int k = 1; k <= boxes; k++) {
		check_ok(rh_safetensors_open(path_of("%s/out%d/%s", scratch->dir, k, file), &part));
		for (int64_t i = 0; i < rh_safetensors_count(part); i++) {
			const struct rh_safetensor *tensor = rh_safetensors_at(part, i), *same = rh_safetensors_find(whole, tensor->name);
			assert_non_null(same);
			assert_int_equal(tensor->bytes, same->bytes);
			if (memcmp(tensor_bytes(part, tensor), tensor_bytes(whole, same), (size_t)same->bytes))
				fail_msg("%s of box %d of %d differs", tensor->name, k, boxes);
			found++;
		}
		rh_safetensors_close(part);
	}
	assert_int_equal(found, rh_safetensors_count(whole) + copies);
	rh_safetensors_close(whole);
}

static inline void check_weights(const struct scratch *scratch, const char *file, int boxes)
{
	check_weights_copied(scratch, file, boxes, 0);
}

/* As much as a failure's message holds. */
static inline const char *last_lines(const char *text)
{
	enum { MOST = 600 };
	size_t length = strlen(text);
	return length > MOST ? text + length - MOST : text;
}

/* Waits for all boxes; none may fail. */
static inline void boxes_finish(struct ran *ran, int boxes)
{
	for (int k = 0; k < boxes; k++)
		run_wait(&ran[k]);
	for (int k = boxes - 1; k >= 0; k--) { /* what ends box 1 is most often the end of another */
		if (ran[k].status)
			fail_msg("box %d of %d: exit %d: %s", k + 1, boxes, ran[k].status, last_lines(ran[k].err));
		run_free(&ran[k]);
	}
}

static inline json_int_t peak_of(const json_t *json, const char *tier)
{
	return json_integer_value(json_object_get(json_object_get(json, "peak_bytes"), tier));
}

/* What `train --json` printed in box k: it took no more host memory than was planned. */
static inline void check_peak(const json_t *json, int k)
{
	json_int_t peak = peak_of(json, "ram"), plan = peak_of(json_object_get(json, "plan"), "ram");
	printf("box %d: %.2f MiB of %.2f planned\n", k + 1, (double)peak / 1048576, (double)plan / 1048576);
	if (CHECK_RESIDENT && peak > plan)
		fail_msg("box %d takes %.2f MiB of %.2f planned", k + 1, (double)peak / 1048576, (double)plan / 1048576);
}

/* For run_prepare: boxes that wait for one another for ever are ended, not the whole test. */
static inline void boxes_limit_time(void)
{
	limit_time(300);
}

static inline int is_there(const struct scratch *scratch, int box, int64_t step)
{
	return rh_file_exists(path_of("%s/out%d/checkpoint-%d/run_state.json", scratch->dir, box, (int)step));
}

/* The lines of metrics.jsonl: the same losses, and norms that are at most this share apart, as sums of several boxes' squares round in
 * another way. Returns how many lines there are. */
static inline int check_metrics(const struct scratch *scratch, int box, double norm_apart)
{
	FILE *file[2] = {fopen(path_of("%s/out0/metrics.jsonl", scratch->dir), "r"),
	                 fopen(path_of("%s/out%d/metrics.jsonl", scratch->dir, box), "r")};
	char line[2][4096];
	int lines = 0;
	assert_true(file[0] && file[1]);
	for (; fgets(line[0], sizeof line[0], file[0]); lines++) {
		assert_non_null(fgets(line[1], sizeof line[1], file[1]));
		json_t *one = json_loads(line[0], 0, NULL), *two = json_loads(line[1], 0, NULL);
		static const char *const names[] = {"step", "loss", "learning_rate", "trained_tokens"};
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			assert_true(json_equal(json_object_get(one, names[i]), json_object_get(two, names[i])));
		double norm = json_number_value(json_object_get(one, "grad_norm"));
		assert_true(fabs(norm - json_number_value(json_object_get(two, "grad_norm"))) <= norm_apart * norm);
		json_decref(one);
		json_decref(two);
	}
	fclose(file[0]);
	fclose(file[1]);
	return lines;
}

#endif
