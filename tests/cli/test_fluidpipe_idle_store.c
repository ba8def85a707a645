/* The samples that box 2 keeps for opportunistic steps: `plan` counts them to the byte, budgets that are too small are refused in one line,
 * and where a drive fails the box says so in one line, its last checkpoint is whole, and what is not said has changed nothing. */
#include "cli/distil.h"
#include "config/config.h"
#include "core/log.h"
#include "folder.h"
#include "link/network.h"
#include "offload/drive.h"
#include "train/train.h"

#include <inttypes.h>

/* Six steps an epoch, four epochs. */
#define SHORT "--gradient_accumulation_steps 1 --max_steps 24 --fluidpipe_recipe FP-DT --fluidpipe_idle_sampler random "

static const struct shape slow[1][2] = {{{.latency_ms = 10, .mbit = 0.2}, {.latency_ms = 10, .mbit = 0.2}}};

static void open_world(struct scratch *scratch)
{
	open_images(scratch, "");
	check_ok(rh_dir_make(path_of("%s/drive", scratch->dir)));
}

/* Memory for one sample, and room on NVMe for all. */
static const char *spilling(const struct scratch *scratch)
{
	return path_of("--fluidpipe_idle_store 2KiB --fluidpipe_idle_spill 64KiB --max_nvme 4MiB --nvme_dirs %s/drive", scratch->dir);
}

static json_t *read_json(struct ran *ran)
{
	json_t *json = json_loads(ran->out, 0, NULL);
	if (!json)
		fail_msg("exit %d: %s", ran->status, ran->err);
	run_free(ran);
	return json;
}

/* A run's plan is `plan`'s, and it takes what they say. */
static void check_planned(const struct scratch *scratch, const char *both, const char *of_2, json_int_t nvme)
{
	struct box_wire wire = free_wire();
	struct ran ran[2], planned;
	planned = run_line(scratch, "plan %s/run.yaml --box 2 " SHORT "--save_strategy no %s %s --json", scratch->dir, both, of_2);
	json_t *plan = read_json(&planned);
	for (int k = 1; k <= 2; k++)
		start_box(scratch, k, &wire, path_of(SHORT "--save_strategy no --json %s %s", both, k == 2 ? of_2 : ""), &ran[k - 1]);
	for (int k = 0; k < 2; k++)
		run_wait(&ran[k]);
	for (size_t k = 0; k < 2; k++) {
		json_t *done = read_json(&ran[k]), *of_run = json_object_get(done, "plan"),
		       *box = json_array_get(json_object_get(plan, "boxes"), k);
		printf("box %zu: %.2f MiB of %.2f planned; %lld bytes on NVMe\n", k + 1, (double)peak_of(done, "ram") / 1048576,
		       (double)peak_of(of_run, "ram") / 1048576, (long long)peak_of(done, "nvme"));
		assert_int_equal(json_integer_value(json_object_get(box, "ram_bytes")), peak_of(of_run, "ram"));
		assert_int_equal(json_integer_value(json_object_get(box, "device_bytes")), peak_of(of_run, "vram"));
		assert_int_equal(json_integer_value(json_object_get(box, "nvme_bytes")), peak_of(of_run, "nvme"));
		assert_int_equal(peak_of(done, "nvme"), k ? nvme : 0);
		assert_true(!CHECK_RESIDENT || peak_of(done, "ram") <= peak_of(of_run, "ram"));
		json_decref(done);
	}
	json_decref(plan);
	for (int k = 1; k <= 2; k++)
		check_ok(rh_dir_remove(path_of("%s/out%d", scratch->dir, k)));
}

static void test_plan_counts_the_samples(void **state)
{
	(void)state;
	struct scratch scratch;
	open_world(&scratch);
	check_planned(&scratch, "", "", 0);
	check_planned(&scratch, "--fluidpipe_logits stream", spilling(&scratch), 64 << 10);
	scratch_close(&scratch);
}

/* Of a language model: the shares of each of its targets, at both boxes. */
static void test_plan_counts_the_shares(void **state)
{
	(void)state;
	struct scratch scratch;
	open_language(&scratch, "fluidpipe_top_k: 5\n", 0);
	check_planned(&scratch, "", "", 0);
	scratch_close(&scratch);
}

/* Box 2 hears from box 1 how long samples are, so it is the one that says no; `plan` says the same. */
static void test_budgets_that_are_too_small_are_refused(void **state)
{
	(void)state;
	/* images of 10 tokens of 24 floats, and 50 logits */
	static const char *const options[] = {
	        "--fluidpipe_idle_store 1KiB",
	        "--fluidpipe_idle_store 5KiB --fluidpipe_idle_spill 4KiB --max_nvme 4MiB --nvme_dirs %s/drive",
	        "--fluidpipe_idle_store 5KiB --fluidpipe_idle_spill 64KiB --max_nvme 32KiB --nvme_dirs %s/drive"};
	static const char *const says[] = {"fluidpipe_idle_store: 1024 bytes; a sample takes up to 1",
	                                   "fluidpipe_idle_spill: 4096 bytes; 2 records", "max_nvme: "};
	struct scratch scratch;
	open_world(&scratch);
	for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
		struct box_wire wire = free_wire();
		struct ran ran[2], planned;
		char of_2[256];
		snprintf(of_2, sizeof of_2, options[i], scratch.dir);
		planned = run_line(&scratch, "plan %s/run.yaml --box 2 " SHORT "%s", scratch.dir, of_2);
		if (!planned.status || !(strstr(planned.err, says[i]) || strstr(planned.out, says[i])))
			fail_msg("exit %d: %s%s", planned.status, planned.out, planned.err);
		run_free(&planned);
		for (int k = 1; k <= 2; k++)
			start_box(&scratch, k, &wire, path_of(SHORT "%s", k == 2 ? of_2 : ""), &ran[k - 1]);
		for (int k = 0; k < 2; k++)
			run_wait(&ran[k]);
		check_failed(&ran[1], says[i]);
		check_failed(&ran[0], "");
		assert_false(rh_dir_exists(path_of("%s/out2", scratch.dir)));
		for (int k = 0; k < 2; k++)
			run_free(&ran[k]);
		check_ok(rh_dir_remove(path_of("%s/out1", scratch.dir)));
	}
	scratch_close(&scratch);
}

/* ---- drives that fail ---- */

/* Box 1 makes no opportunistic steps. */
#define UPPER SHORT "--save_steps 6 --fluidpipe_alpha1 1 --fluidpipe_idle_steps 6 "

/* Box 2 in this process, whose drives can fail; box 1 in one of its own. */
static int run_with_drives(const struct scratch *scratch, const char *replay)
{
	char line[1024], *argv[64], *at = line;
	struct box_wire wire = free_wire();
	struct rh_config config;
	struct rh_train_result result;
	struct ran first;
	int argc = 0;
	snprintf(line, sizeof line, "%s/run.yaml --output_dir %s/out2 --box 2 --link_below %s " UPPER "%s %s", scratch->dir, scratch->dir,
	         wire.connects, spilling(scratch), replay);
	for (char *word; (word = strsep(&at, " "));)
		if (*word)
			argv[argc++] = word;
	rh_error_clear();
	int rc = rh_config_load("train", argc, argv, NULL, &config);
	start_box(scratch, 1, &wire, UPPER, &first);
	if (!rc)
		rc = rh_train(&config, &result);
	rh_config_free(&config);
	run_wait(&first);
	if (!rc != !first.status)
		fail_msg("box 2: %d, %s; box 1: exit %d, %s", rc, rh_error(rc), first.status, first.err);
	if (rc)
		check_failed(&first, "");
	run_free(&first);
	return rc;
}

static const struct {
	enum rh_drive_fault fault;
	int code, rc; /* rc 0: mended */
	int stride;   /* but under RH_LONG, calls of which one fails */
} faults[] = {
        {RH_FAULT_FAIL, -EIO, -EIO, 2},  {RH_FAULT_FAIL, -ENOSPC, -ENOSPC, 5}, {RH_FAULT_SHORT, 0, 0, 5},
        {RH_FAULT_TORN, 0, -EBADMSG, 1}, {RH_FAULT_FLIP, 0, -EBADMSG, 1},
};

/* One line of the fault or the right result; whole checkpoints, and nothing else that stays. */
static void check_after(const struct scratch *scratch, int rc, size_t f, int64_t n)
{
	const char *line = rh_error(rc);
	if (rc && (rc != faults[f].rc || !strstr(line, "/drive") || strchr(line, '\n')))
		fail_msg("fault %zu, call %" PRId64 ": code %d, '%s'", f, n, rc, line);
	int64_t newest = 0;
	for (int step = 1; step <= 24; step++) {
		if (!is_there(scratch, 2, step))
			continue;
		assert_true(is_same_step(scratch, "whole", 2, step));
		newest = step;
	}
	assert_true(rc || newest == 24);
	check_folder_is_empty(path_of("%s/drive", scratch->dir));
	for (int k = 1; k <= 2; k++)
		if (rh_dir_exists(path_of("%s/out%d", scratch->dir, k)))
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch->dir, k)));
}

/* Over a slow line, so that there are steps to follow. */
static void make_log(const struct scratch *scratch)
{
	struct network network;
	struct box_wire wire = free_wire();
	struct ran ran[2];
	network_open(&network, 2, slow, check_seed());
	network_addresses(&network, 0, wire.listens, wire.connects);
	for (int k = 1; k <= 2; k++)
		start_box(scratch, k, &wire, UPPER, &ran[k - 1]);
	boxes_finish(ran, 2);
	network_close(&network);
	move_outputs(scratch, "whole");
}

static void test_a_drive_that_fails_is_one_line(void **state)
{
	(void)state;
	struct scratch scratch;
	char replay[256];
	open_world(&scratch);
	make_log(&scratch);
	snprintf(replay, sizeof replay, "--fluidpipe_idle_replay %s/whole2/opportunistic.jsonl", scratch.dir);
	for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
		int64_t n = 1, told = 0, calls = 0;
		for (; n < 1000; n += getenv("RH_LONG") ? 1 : faults[f].stride) {
			rh_drive_fail_nth(n, faults[f].fault, faults[f].code);
			int rc = run_with_drives(&scratch, replay);
			calls = rh_drive_fail_nth(0, 0, 0);
			check_after(&scratch, rc, f, n);
			told += rc != 0;
			if (calls < n)
				break;
		}
		printf("fault %zu: told %" PRId64 " times, %" PRId64 " calls\n", f, told, calls);
		assert_true(calls < n && (told > 0) == (faults[f].rc != 0));
	}
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	rh_log_quiet(1);
	setenv("RH_RELAY", "1", 1); /* so that boxes are on one machine, and need no keys */
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_plan_counts_the_samples),
	        cmocka_unit_test(test_plan_counts_the_shares),
	        cmocka_unit_test(test_budgets_that_are_too_small_are_refused),
	        cmocka_unit_test(test_a_drive_that_fails_is_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
