/* Boxes of mode sync-pp, which compute what one box does, for the tests that compare them with it. */
#ifndef RH_TESTS_CLI_SYNC_BOXES_H
#define RH_TESTS_CLI_SYNC_BOXES_H

#include "cli/boxes.h"

#define TWENTY_STEPS " --max_steps 20"

static inline void run_boxes(const struct scratch *scratch, const char *keys, int boxes, int encrypts)
{
	char secret[BOXES_MOST][512] = {0};
	if (encrypts)
		make_keys(scratch, boxes, secret);
	struct ran ran[BOXES_MOST];
	struct box_wire wire[BOXES_MOST];
	for (int k = 0; k + 1 < boxes; k++)
		wire[k] = free_wire();
	for (int k = 1; k <= boxes; k++) {
		char all[1024];
		snprintf(all, sizeof all, "%s%s", keys, secret[k - 1]);
		write_config(scratch, all, boxes, k, wire);
		run_start(scratch, path_of("train %s/run%d.yaml" TWENTY_STEPS, scratch->dir, k), 0, &ran[k - 1]);
	}
	boxes_finish(ran, boxes);
}

/* The parts put together are the one box's model. */
static inline void check_joined(const struct scratch *scratch, int boxes)
{
	char parts[1024];
	for (int k = 1, used = 0; k <= boxes; k++)
		used += snprintf(parts + used, sizeof parts - (size_t)used, "%s%s/out%d", k > 1 ? "," : "", scratch->dir, k);
	struct ran ran = run_line(scratch, "join --parts %s --output_dir %s/joined", parts, scratch->dir);
	if (ran.status)
		print_error("%s\n", ran.err);
	assert_int_equal(ran.status, 0);
	run_free(&ran);
	struct rh_safetensors *whole, *joined;
	check_ok(rh_safetensors_open(path_of("%s/out0/model.safetensors", scratch->dir), &whole));
	check_ok(rh_safetensors_open(path_of("%s/joined/model.safetensors", scratch->dir), &joined));
	assert_int_equal(rh_safetensors_count(joined), rh_safetensors_count(whole));
	for (int64_t i = 0; i < rh_safetensors_count(joined); i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(joined, i), *same = rh_safetensors_find(whole, tensor->name);
		assert_non_null(same);
		assert_memory_equal(tensor_bytes(joined, tensor), tensor_bytes(whole, same), (size_t)same->bytes);
	}
	rh_safetensors_close(whole);
	rh_safetensors_close(joined);
	assert_true(same_file(path_of("%s/out0/config.json", scratch->dir), path_of("%s/joined/config.json", scratch->dir)));
	assert_true(same_file(path_of("%s/out0/tokenizer.json", scratch->dir), path_of("%s/joined/tokenizer.json", scratch->dir)));
	check_ok(rh_dir_remove(path_of("%s/joined", scratch->dir)));
	ran = run_line(scratch, "join --parts %s/out1 --output_dir %s/joined", scratch->dir, scratch->dir);
	assert_int_equal(ran.status, 1);
	assert_non_null(strstr(ran.err, "give all boxes' directories"));
	assert_false(rh_dir_exists(path_of("%s/joined", scratch->dir)));
	run_free(&ran);
}

/* Keys of a run that saves every second step. */
#define SAVES "device: cpu:1\nsave_strategy: steps\nsave_steps: 2\nlink_timeout: 2\nlink_give_up: 60\n"

/* One of two boxes is killed when it has a checkpoint, and started again; the other, told so, is started again, too. `linked`: more keys of
 * the boxes. `copies`: tensors that both have. */
static inline void check_killed(const struct scratch *scratch, const char *linked, int victim, int copies)
{
	struct ran ran[2], again[2];
	struct box_wire wire = free_wire();
	char keys[256];
	snprintf(keys, sizeof keys, SAVES "%s", linked);
	write_config(scratch, SAVES, 1, 0, NULL);
	for (int k = 1; k <= 2; k++) {
		write_config(scratch, keys, 2, k, &wire);
		run_start(scratch, path_of("train %s/run%d.yaml --max_steps 16", scratch->dir, k), 0, &ran[k - 1]);
	}
	for (int i = 0; i < 60000 && !is_there(scratch, victim, 2); i++)
		usleep(1000);
	kill(ran[victim - 1].pid, SIGKILL);
	run_wait(&ran[victim - 1]);
	run_start(scratch, path_of("train %s/run%d.yaml --max_steps 16 --resume_from_checkpoint true", scratch->dir, victim), 0,
	          &again[victim - 1]);
	run_wait(&ran[2 - victim]);
	assert_int_equal(ran[2 - victim].status, 1);
	assert_non_null(strstr(ran[2 - victim].err, "resume_from_checkpoint: true"));
	run_start(scratch, path_of("train %s/run%d.yaml --max_steps 16 --resume_from_checkpoint true", scratch->dir, 3 - victim), 0,
	          &again[2 - victim]);
	for (int k = 0; k < 2; k++) {
		run_wait(&again[k]);
		if (again[k].status)
			print_error("box %d: %s\n", k + 1, again[k].err);
		assert_int_equal(again[k].status, 0);
	}
	struct ran whole = run_line(scratch, "train %s/run0.yaml --max_steps 16", scratch->dir);
	assert_int_equal(whole.status, 0);
	check_weights_copied(scratch, "model.safetensors", 2, copies);
	run_free(&whole);
	for (int k = 0; k < 2; k++) {
		run_free(&ran[k]);
		run_free(&again[k]);
	}
}

#endif
