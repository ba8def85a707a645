/* PACI over boxes: each box is one stage that updates itself. A run over N boxes is, bit for bit, that of one box whose N devices have
 * the same stages under schedule paci; which tests/train/test_local.c compares with a plain loop. */
#include "cli/boxes.h"
#include "core/minmax.h"
#include "core/text.h"
#include "link/relay.h"

#include <jansson.h>
#include <math.h>

/* What stands in each line: a relay that delays what passes, or cuts the connection after so many bytes at most; zeros: nothing. */
struct between {
	double latency_ms;
	int64_t most_bytes;
	int most_cuts;
};

/* Starts all boxes and waits for them. Returns how often their lines were cut. */
static int run_far_boxes(const struct scratch *scratch, const char *keys, int boxes, struct between between, const char *options)
{
	int is_relayed = between.latency_ms > 0 || between.most_bytes, cuts = 0;
	struct ran ran[BOXES_MOST];
	struct box_wire wire[BOXES_MOST];
	struct relay relay[BOXES_MOST];
	for (int k = 0; k + 1 < boxes; k++) {
		int port = free_port();
		wire[k] = free_wire();
		if (!is_relayed)
			continue;
		relay_open(&relay[k], between.most_bytes, 1 + (uint64_t)k);
		relay[k].most_cuts = between.most_cuts;
		relay[k].shape[0].latency_ms = relay[k].shape[1].latency_ms = between.latency_ms;
		snprintf(wire[k].listens, sizeof wire[k].listens, "127.0.0.1:%d", port);
		snprintf(wire[k].connects, sizeof wire[k].connects, "127.0.0.1:%d", relay[k].port);
		relay_start(&relay[k], port);
	}
	for (int k = 1; k <= boxes; k++) {
		write_config(scratch, keys, boxes, k, wire);
		run_start(scratch, path_of("train %s/run%d.yaml %s", scratch->dir, k, options), 0, &ran[k - 1]);
	}
	boxes_finish(ran, boxes);
	for (int k = 0; is_relayed && k + 1 < boxes; k++) {
		cuts += relay[k].cuts;
		relay_close(&relay[k]);
	}
	return cuts;
}

static void run_boxes(const struct scratch *scratch, const char *keys, int boxes, const char *options)
{
	(void)run_far_boxes(scratch, keys, boxes, (struct between){0}, options);
}

static void run_alone(const struct scratch *scratch, const char *keys, const char *options)
{
	write_config(scratch, keys, 1, 0, NULL);
	struct ran ran = run_line(scratch, "train %s/run0.yaml %s", scratch->dir, options);
	if (ran.status)
		print_error("%s\n", ran.err);
	assert_int_equal(ran.status, 0);
	run_free(&ran);
}

/* 28 rows, seven steps an epoch: a step that is short would run alone, without another beside it. */
static void make_rows(struct scratch *scratch)
{
	make_files(scratch);
	write_text(path_of("%s/rows.jsonl", scratch->dir), ROWS ROWS ROWS ROWS);
}

/* ---- which weights each unit's forward and backward read ---- */

enum { ACCUMULATION = 4, REST = 8 }; /* micro-batches of a step; steps from one checkpoint of SAVES to the next */

/* What a log must say. A unit has so many micro-batches. cut: each box's, or stage's, first layer but the first one's. */
struct expected {
	int boxes, steps, cut[BOXES_MOST];
	int64_t limit[BOXES_MOST], unit, delay, rest; /* rest: steps from one rest of all boxes to the next; 0: there is none */
};

/* The steps whose updates weights have had so many backwards of units behind the rest after step `rest`. */
static int64_t version_after(const struct expected *is, int64_t rest, int64_t backwards)
{
	return rest + rh_max(0, backwards - is->delay) / (ACCUMULATION / is->unit);
}

/* The closed form: unit m, counted from the latest rest, is forwarded behind m - K backwards, K = limit - 1, and has its own behind m. */
static void check_unit(const struct expected *is, const json_t *line, int layer, int64_t micro_batch)
{
	int64_t step = json_integer_value(json_object_get(line, "step")) - 1, rest = is->rest ? step - step % is->rest : 0;
	int64_t m = ((step - rest) * ACCUMULATION + micro_batch) / is->unit, units = ACCUMULATION / is->unit;
	int box = 0;
	while (box + 1 < is->boxes && layer >= is->cut[box + 1])
		box++;
	int64_t ahead = is->limit[box] - 1, forward = version_after(is, rest, rh_max(0, m - ahead)), backward = version_after(is, rest, m);
	json_int_t read[] = {json_integer_value(json_array_get(json_object_get(line, "forward"), (size_t)micro_batch)),
	                     json_integer_value(json_array_get(json_object_get(line, "backward"), (size_t)micro_batch))};
	if (read[0] != forward || read[1] != backward)
		fail_msg("box %d, layer %d, step %d, micro-batch %d: read %d and %d, formula %d and %d", box + 1, layer, (int)step + 1,
		         (int)micro_batch, (int)read[0], (int)read[1], (int)forward, (int)backward);

	assert_true(read[1] - read[0] <= (ahead + units - 1) / units);
}

/* Each micro-batch of each step in each trained layer from lo to hi - 1, once. */
static void check_versions(const struct scratch *scratch, int out, const struct expected *is, int lo, int hi)
{
	FILE *file = fopen(path_of("%s/out%d/versions.jsonl", scratch->dir, out), "r");
	char text[4096];
	int64_t seen = 0;
	assert_non_null(file);
	while (fgets(text, sizeof text, file)) {
		json_t *line = json_loads(text, 0, NULL), *layers = json_object_get(line, "layers");
		assert_int_equal(json_array_size(json_object_get(line, "forward")), ACCUMULATION);
		assert_int_equal(json_array_size(json_object_get(line, "backward")), ACCUMULATION);
		for (int l = (int)json_integer_value(json_array_get(layers, 0)); l <= json_integer_value(json_array_get(layers, 1)); l++) {
			assert_in_range(l, lo, hi - 1);
			for (int64_t m = 0; m < ACCUMULATION; m++, seen++)
				check_unit(is, line, l, m);
		}
		json_decref(line);
	}
	fclose(file);
	assert_int_equal(seen, (int64_t)ACCUMULATION * is->steps * rh_max(hi - lo, 0));
}

struct division {
	const char *device, *cuts;
	int boxes;
};

/* Each box has one device, or two between which its layers are dealt out. */
static const struct division divisions[] = {{"cpu:2", "[3]", 2}, {"cpu:2", "[1]", 2}, {"cpu:3", "[2, 4]", 3}};

enum { STEPS = 20, LAYERS = 7 };

/* The logs of the boxes, and of the one box. Adapters are in the blocks, between embedding and head. */
static void check_logs(const struct scratch *scratch, const struct division *division, const char *keys, int steps, int adapters)
{
	const char *delay = strstr(keys, "paci_update_delay: ");
	struct expected is = {.boxes = division->boxes,
	                      .steps = steps,
	                      .unit = 1,
	                      .delay = delay ? atoi(strchr(delay, ' ')) : 0,
	                      .rest = strstr(keys, "save_steps: ") ? REST : 0};
	(void)sscanf(division->cuts, "[%d, %d]", &is.cut[1], &is.cut[2]);
	is.cut[is.boxes] = LAYERS;
	for (int k = 0; k < is.boxes; k++)
		is.limit[k] = is.boxes - k;
	for (int k = 0; k < is.boxes; k++)
		check_versions(scratch, k + 1, &is, (int)rh_max(is.cut[k], adapters), (int)rh_min(is.cut[k + 1], LAYERS - adapters));
	if (steps > 1)
		check_versions(scratch, 0, &is, adapters, LAYERS - adapters);
}

/* The first step's update is that of a step that is flushed: every micro-batch has met the first weights. */
static void check_division(const struct division *division, const char *keys, const char *device, int steps, int adapters)
{
	struct scratch scratch;
	char options[64], alone[512], linked[512];
	make_rows(&scratch);
	snprintf(options, sizeof options, "--max_steps %d", steps);
	if (steps == 1)
		snprintf(alone, sizeof alone, "%sdevice: cpu:1\nmax_grad_norm: 0\n", keys);
	else
		snprintf(alone, sizeof alone, "%smax_grad_norm: 0\nschedule: paci\ndevice: %s\nforward_cuts: %s\n", keys, division->device,
		         division->cuts);
	snprintf(linked, sizeof linked, "%smax_grad_norm: 0\nmode: paci\ndevice: %s\nround_micro_batches: 1\nbox_cuts: %s\n", keys, device,
	         division->cuts);
	run_alone(&scratch, alone, options);
	run_boxes(&scratch, linked, division->boxes, options);
	check_weights(&scratch, adapters ? "adapter_model.safetensors" : "model.safetensors", adapters ? 1 : division->boxes);
	for (int k = 1; k <= division->boxes; k++)
		assert_int_equal(check_metrics(&scratch, k, 1e-12), steps);
	check_logs(&scratch, division, keys, steps, adapters);
	scratch_close(&scratch);
}

/* All come to rest each eight steps, at a checkpoint; else only at the end. */
#define SAVES "save_strategy: steps\nsave_steps: 8\n"

static void test_boxes_are_stages(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof divisions / sizeof *divisions; i++)
		check_division(&divisions[i], SAVES, "cpu:1", STEPS, 0);
}

/* Backwards with the activations, and with the weights, of their forward: tests/train/test_local.c has the plain loop. */
static void test_other_backwards(void **state)
{
	(void)state;
	check_division(&divisions[2], SAVES "paci_backward: stored\n", "cpu:1", STEPS, 0);
	check_division(&divisions[2], SAVES "paci_backward: stash\n", "cpu:1", STEPS, 0);
	check_division(&divisions[0], SAVES "paci_backward: stash\n", "cpu:2", STEPS, 0);
}

/* Updates beside their box, published from one to three backwards later. */
static void test_updates_beside_their_box(void **state)
{
	(void)state;
	static const char lora[] = SAVES "paci_update_delay: 2\nlora_r: 4\nlora_target_modules: all-linear\n";
	check_division(&divisions[2], SAVES "paci_update_delay: 1\n", "cpu:1", STEPS, 0);
	check_division(&divisions[2], SAVES "paci_update_delay: 3\npaci_backward: stored\n", "cpu:1", STEPS, 0);
	check_division(&divisions[0], SAVES "paci_update_delay: 2\n", "cpu:2", STEPS, 0);
	check_division(&divisions[1], lora, "cpu:1", STEPS, 1); /* the first box trains nothing */
}

static void test_the_first_update_is_a_flushed_steps(void **state)
{
	(void)state;
	check_division(&divisions[2], SAVES, "cpu:1", 1, 0);
}

static void test_boxes_of_two_devices_are_stages(void **state)
{
	(void)state;
	check_division(&divisions[0], SAVES, "cpu:2", STEPS, 0);
}

static void test_adapters(void **state)
{
	(void)state;
	static const char keys[] = SAVES "lora_r: 4\nlora_dropout: 0.1\nlora_target_modules: all-linear\n";
	check_division(&divisions[0], keys, "cpu:1", STEPS, 1);
	check_division(&divisions[2], keys, "cpu:1", STEPS, 1);
	check_division(&divisions[1], keys, "cpu:2", STEPS, 1); /* the first box trains nothing */
}

/* ---- clipping ---- */

/* Renames what boxes 1 and 2 have written. */
static void put_aside(const struct scratch *scratch, const char *name)
{
	for (int k = 1; k <= 2; k++) {
		char from[512];
		snprintf(from, sizeof from, "%s/out%d", scratch->dir, k);
		assert_int_equal(rename(from, path_of("%s/%s%d", scratch->dir, name, k)), 0);
	}
}

/* The norm of what a box's weights differ by in two runs. */
static double distance(const struct scratch *scratch, const char *a, const char *b, int box)
{
	struct rh_safetensors *one, *two;
	double squares = 0;
	check_ok(rh_safetensors_open(path_of("%s/%s%d/model.safetensors", scratch->dir, a, box), &one));
	check_ok(rh_safetensors_open(path_of("%s/%s%d/model.safetensors", scratch->dir, b, box), &two));
	for (int64_t i = 0; i < rh_safetensors_count(one); i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(one, i), *other = rh_safetensors_find(two, tensor->name);
		const float *x = tensor_bytes(one, tensor), *y = tensor_bytes(two, other);
		assert_int_equal(tensor->dtype, RH_F32);
		for (int64_t e = 0; e < tensor->bytes / 4; e++)
			squares += ((double)x[e] - (double)y[e]) * ((double)x[e] - (double)y[e]);
	}
	rh_safetensors_close(one);
	rh_safetensors_close(two);
	return sqrt(squares);
}

static double elements(const struct scratch *scratch, int box)
{
	struct rh_safetensors *file;
	double count = 0;
	check_ok(rh_safetensors_open(path_of("%s/still%d/model.safetensors", scratch->dir, box), &file));
	for (int64_t i = 0; i < rh_safetensors_count(file); i++)
		count += (double)rh_safetensors_at(file, i)->bytes / 4;
	rh_safetensors_close(file);
	return count;
}

#define TWO "mode: paci\ndevice: cpu:1\nbox_cuts: [3]\nsave_strategy: \"no\"\noptim: sgd\n"

/* By sgd a step is the gradient times the learning rate: the first one's length is what the box's share of max_grad_norm lets it be. fp32
 * weights near 1 round by 6e-8 each, some hundred times less than the tolerance. */
static void test_each_box_clips_by_its_share(void **state)
{
	(void)state;
	enum { CLIPPED = 4 }; /* max_grad_norm is 1 over it */
	struct scratch scratch;
	make_rows(&scratch);
	run_boxes(&scratch, TWO "max_grad_norm: 0\n", 2, "--max_steps 1 --learning_rate 0");
	put_aside(&scratch, "still");
	run_boxes(&scratch, TWO "max_grad_norm: 0\n", 2, "--max_steps 1 --learning_rate 1");
	put_aside(&scratch, "free");
	run_boxes(&scratch, TWO "max_grad_norm: 1000000\n", 2, "--max_steps 1 --learning_rate 1");
	put_aside(&scratch, "loose");
	run_boxes(&scratch, TWO "max_grad_norm: 0.25\n", 2, "--max_steps 1 --learning_rate 1");
	double all = elements(&scratch, 1) + elements(&scratch, 2);
	for (int k = 1; k <= 2; k++) {
		double share = sqrt(elements(&scratch, k) / all), moved = distance(&scratch, "still", "out", k);
		assert_true(distance(&scratch, "still", "free", k) > 1.1 * share / CLIPPED); /* else nothing was clipped */
		assert_true(fabs(moved - share / CLIPPED) < 1e-4 * moved);
		assert_true(distance(&scratch, "free", "loose", k) == 0);
	}
	scratch_close(&scratch);
}

/* ---- what is told ---- */

/* Lines come in bursts, as results of several steps may: speeds and times are the steps' own. Without a pause between two lines the time
 * between their steps' ends is that of which tokens_per_second speaks, and of which the waits are parts. */
static void check_times(const struct scratch *scratch, int out, int lines)
{
	static const char *const parts[] = {"compute_seconds", "weights_wait_seconds", "activations_wait_seconds", "gradients_wait_seconds",
	                                    "optimizer_wait_seconds"};
	FILE *file = fopen(path_of("%s/out%d/metrics.jsonl", scratch->dir, out), "r");
	char text[4096];
	double before = 0;
	int seen = 0;
	assert_non_null(file);
	for (; fgets(text, sizeof text, file); seen++) {
		json_t *line = json_loads(text, 0, NULL);
		double elapsed = json_number_value(json_object_get(line, "elapsed_seconds")), sum = 0,
		       tokens = json_number_value(json_object_get(line, "tokens_per_second")) * (elapsed - before);
		assert_true(elapsed > before);
		assert_true(tokens >= ACCUMULATION && fabs(tokens - round(tokens)) < 1e-3);
		for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
			assert_true(json_is_number(json_object_get(line, parts[i])));
			if (i < 4) /* the updates' waits are among the devices' */
				sum += json_number_value(json_object_get(line, parts[i]));
		}
		assert_true(!seen || sum >= 0.999 * (elapsed - before));
		before = elapsed;
		json_decref(line);
	}
	fclose(file);
	assert_int_equal(seen, lines);
}

static void test_lines_tell_of_their_own_steps(void **state)
{
	(void)state;
	struct scratch scratch;
	make_rows(&scratch);
	run_alone(&scratch, "schedule: 1f1b-async\ndevice: cpu:2\nforward_cuts: [3]\nmax_grad_norm: 0\nsave_strategy: \"no\"\n",
	          "--max_steps 12");
	run_boxes(&scratch, "mode: paci\ndevice: cpu:1\nbox_cuts: [3]\nsave_strategy: \"no\"\nadmission_limits: [8, 1]\n", 2,
	          "--max_steps 12");
	for (int k = 0; k <= 2; k++)
		check_times(&scratch, k, 12);
	scratch_close(&scratch);
}

/* The order of a box's units follows from the limits alone: a slow line changes no bit. Wider limits give other weights. */
static void test_latency_changes_no_bit(void **state)
{
	(void)state;
	static const char own[] = "mode: paci\ndevice: cpu:1\nsave_strategy: \"no\"\n";
	static const char wide[] = "mode: paci\ndevice: cpu:1\nsave_strategy: \"no\"\nadmission_limits: [8, 1]\n";
	struct scratch scratch;
	make_rows(&scratch);
	run_boxes(&scratch, own, 2, "--max_steps 10 --box_cuts 3");
	put_aside(&scratch, "own");
	run_boxes(&scratch, wide, 2, "--max_steps 10 --box_cuts 3");
	put_aside(&scratch, "near");
	(void)run_far_boxes(&scratch, wide, 2, (struct between){.latency_ms = 20}, "--max_steps 10 --box_cuts 3");
	for (int k = 1; k <= 2; k++)
		assert_true(distance(&scratch, "near", "out", k) == 0);
	const struct expected is = {.boxes = 2, .steps = 10, .cut = {0, 3, LAYERS}, .limit = {8, 1}, .unit = 1};
	for (int k = 0; k < 2; k++)
		check_versions(&scratch, k + 1, &is, is.cut[k], is.cut[k + 1]);
	assert_true(distance(&scratch, "near", "own", 1) > 0);
	scratch_close(&scratch);
}

/* Units of two micro-batches in boxes of two devices. The last box's limit lets two units in, but its order has no two: a unit's backward
 * is ready when its forward is. */
static void test_versions_of_units(void **state)
{
	(void)state;
	static const char keys[] = "mode: paci\ndevice: cpu:2\nround_micro_batches: 2\nadmission_limits: [5, 2]\nmax_vram: 140KiB\n"
	                           "box_cuts: [2]\nsave_strategy: \"no\"\n";
	const struct expected is = {.boxes = 2, .steps = 10, .cut = {0, 2, LAYERS}, .limit = {5, 1}, .unit = 2};
	struct scratch scratch;
	make_rows(&scratch);
	run_boxes(&scratch, keys, 2, "--max_steps 10");
	for (int k = 0; k < 2; k++)
		check_versions(&scratch, k + 1, &is, is.cut[k], is.cut[k + 1]);
	scratch_close(&scratch);
}

/* A line that breaks is made anew, and no message is lost or comes twice: three boxes, whose lines are cut again and again. */
static void test_cut_lines_change_no_bit(void **state)
{
	(void)state;
	static const char keys[] =
	        "mode: paci\ndevice: cpu:1\nbox_cuts: [2, 4]\nsave_strategy: \"no\"\nlink_timeout: 2\nlink_give_up: 60\n";
	struct scratch scratch;
	make_rows(&scratch);
	run_boxes(&scratch, keys, 3, "--max_steps 16");
	for (int k = 1; k <= 3; k++) {
		char from[512];
		snprintf(from, sizeof from, "%s/out%d", scratch.dir, k);
		assert_int_equal(rename(from, path_of("%s/whole%d", scratch.dir, k)), 0);
	}
	int cuts = run_far_boxes(&scratch, keys, 3, (struct between){.most_bytes = 60000, .most_cuts = 6}, "--max_steps 16");
	printf("%d cuts\n", cuts);
	assert_true(cuts > 3);
	for (int k = 1; k <= 3; k++)
		assert_true(distance(&scratch, "whole", "out", k) == 0);
	scratch_close(&scratch);
}

/* One stage has nothing in flight when it updates itself: PACI is accumulation, and so is a schedule with a flush. */
static void test_one_stage_is_plain_accumulation(void **state)
{
	(void)state;
	static const char *const schedules[] = {"paci", "1f1b", "roundpipe"};
	struct scratch scratch;
	char keys[256], from[512];
	make_rows(&scratch);
	for (int i = 0; i < 3; i++) {
		snprintf(keys, sizeof keys, SAVES "max_grad_norm: 0\ndevice: cpu:1\nschedule: %s\n", schedules[i]);
		run_alone(&scratch, keys, "--max_steps 20");
		snprintf(from, sizeof from, "%s/out0", scratch.dir);
		assert_int_equal(rename(from, path_of("%s/%s0", scratch.dir, schedules[i])), 0);
	}
	assert_true(distance(&scratch, "paci", "1f1b", 0) == 0);
	assert_true(distance(&scratch, "paci", "roundpipe", 0) == 0);
	scratch_close(&scratch);
}

/* Seven rows: an epoch's second step has three micro-batches, and all boxes close that shorter window. */
static void test_an_epoch_ends_with_a_short_window(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	run_alone(&scratch, SAVES "max_grad_norm: 0\nschedule: paci\ndevice: cpu:3\nforward_cuts: [2, 4]\n", "--max_steps 12");
	run_boxes(&scratch, SAVES "max_grad_norm: 0\nmode: paci\ndevice: cpu:1\nbox_cuts: [2, 4]\n", 3, "--max_steps 12");
	check_weights(&scratch, "model.safetensors", 3);
	for (int k = 1; k <= 3; k++)
		assert_int_equal(check_metrics(&scratch, k, 1e-12), 12);
	scratch_close(&scratch);
}

/* The first box may have 9 units in flight and updates each 4: ceil(8 / 4) updates. Both boxes refuse a smaller bound. */
static void test_version_drift_keeps_to_its_bound(void **state)
{
	(void)state;
	static const char keys[] = "mode: paci\ndevice: cpu:1\nsave_strategy: \"no\"\nadmission_limits: [9, 1]\n";
	static const struct {
		const char *option, *line[2];
		int status;
	} cases[] = {{"--max_steps 12 --max_version_drift 1", {"gradient_accumulation_steps: 8", "gradient_accumulation_steps: 8"}, 1},
	             {"--max_steps 12 --max_version_drift 2",
	              {"version drift: at most 2, bound 2; ", "version drift: at most 0, bound 0; 0 of 48 micro-batches"},
	              0}};
	struct scratch scratch;
	make_rows(&scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct box_wire wire = free_wire();
		struct ran ran[2];
		for (int k = 1; k <= 2; k++) {
			write_config(&scratch, keys, 2, k, &wire);
			run_start(&scratch, path_of("train %s/run%d.yaml %s", scratch.dir, k, cases[i].option), 0, &ran[k - 1]);
		}
		for (int k = 0; k < 2; k++) {
			run_wait(&ran[k]);
			assert_int_equal(ran[k].status, cases[i].status);
			if (!strstr(ran[k].err, cases[i].line[k]))
				fail_msg("box %d: %s", k + 1, ran[k].err);
			run_free(&ran[k]);
		}
	}
	FILE *file = fopen(path_of("%s/out1/metrics.jsonl", scratch.dir), "r");
	char line[4096];
	json_int_t most = 0;
	assert_non_null(file);
	while (fgets(line, sizeof line, file)) {
		json_t *metrics = json_loads(line, 0, NULL), *drift = json_object_get(metrics, "version_drift");
		assert_true(json_is_integer(drift));
		most = rh_max(most, json_integer_value(drift));
		json_decref(metrics);
	}
	fclose(file);
	assert_int_equal(most, 2);
	scratch_close(&scratch);
}

#define KILLED "mode: paci\ndevice: cpu:1\nmax_grad_norm: 0.25\nsave_strategy: steps\nsave_steps: 6\nlink_timeout: 2\nlink_give_up: 60\n"

static void kill_and_start_again(const char *keys)
{
	static const char options[] = "--max_steps 40";
	struct scratch scratch;
	struct box_wire wire = free_wire();
	struct ran ran[2];
	make_rows(&scratch);
	run_boxes(&scratch, keys, 2, options);
	put_aside(&scratch, "whole");
	for (int k = 1; k <= 2; k++) {
		write_config(&scratch, keys, 2, k, &wire);
		run_start(&scratch, path_of("train %s/run%d.yaml %s", scratch.dir, k, options), 0, &ran[k - 1]);
	}
	for (int i = 0; i < 60000 && !is_there(&scratch, 2, 12); i++)
		usleep(1000);
	kill(ran[1].pid, SIGKILL);
	for (int k = 1; k >= 0; k--) {
		run_wait(&ran[k]);
		run_free(&ran[k]);
		run_start(&scratch, path_of("train %s/run%d.yaml %s --resume_from_checkpoint true", scratch.dir, k + 1, options), 0,
		          &ran[k]);
	}
	boxes_finish(ran, 2);
	for (int k = 1; k <= 2; k++) {
		char log[512];
		snprintf(log, sizeof log, "%s/whole%d/versions.jsonl", scratch.dir, k);
		assert_true(same_file(log, path_of("%s/out%d/versions.jsonl", scratch.dir, k)));
		assert_true(distance(&scratch, "whole", "out", k) == 0);
	}
	scratch_close(&scratch);
}

/* A box is killed when it has a checkpoint; both are started again, and end as boxes that were left alone, their shares of the norm too. */
static void test_a_killed_box_is_started_again(void **state)
{
	(void)state;
	kill_and_start_again(KILLED);
	kill_and_start_again(KILLED "paci_update_delay: 2\n");
}

/* ---- a gradient that is not finite ---- */

/* Steps of four rows each, in their order; `without`: that step's rows are not there, -1: all are. */
static void make_ordered_rows(const struct scratch *scratch, int steps, int without)
{
	static const char *const words[] = {"the cat sat", "a dog ran", "one two three", "red green", "I saw you", "rain falls", "go on"};
	struct rh_text text = {0};
	for (int row = 0; row < 4 * steps; row++)
		if (row / 4 != without)
			check_ok(rh_text_printf(&text, "{\"prompt\": \"%s \", \"completion\": \"%d %s\"}\n", words[row % 7], row,
			                        words[row % 5]));
	write_text(path_of("%s/rows.jsonl", scratch->dir), text.bytes);
	rh_text_free(&text);
}

#define RETURNS                                                                                                                            \
	"mode: paci\ndevice: cpu:1\nmax_grad_norm: 0\noptim: sgd\nlr_scheduler_type: constant\n"                                           \
	"train_sampling_strategy: sequential\n"

/* Both boxes; the gradients of box `spoiled` hold a NaN in these steps. Their lines come back, of both. */
static void run_spoiled(const struct scratch *scratch, const char *keys, int spoiled, const char *steps, const char *options, int status,
                        struct ran ran[2])
{
	struct box_wire wire = free_wire();
	for (int k = 1; k <= 2; k++) {
		write_config(scratch, keys, 2, k, &wire);
		if (k == spoiled)
			setenv("RH_SPOIL_STEPS", steps, 1);
		run_start(scratch, path_of("train %s/run%d.yaml %s", scratch->dir, k, options), 0, &ran[k - 1]);
		unsetenv("RH_SPOIL_STEPS");
	}
	for (int k = 0; k < 2; k++) {
		run_wait(&ran[k]);
		if (ran[k].status != status)
			fail_msg("box %d: status %d: %s", k + 1, ran[k].status, last_lines(ran[k].err));
	}
}

/* What is left out leaves no trace: by sgd at one rate, which know no steps' numbers, the run is one whose rows lack that step's and whose
 * boxes come to rest in its place. The bad step is found in the stretch from 5 to 10. */
static void check_left_out(int spoiled)
{
	struct scratch scratch;
	struct ran ran[2];
	make_files(&scratch);
	make_ordered_rows(&scratch, 12, 7);
	run_boxes(&scratch, RETURNS "save_strategy: steps\nsave_steps: 5\n", 2, "--max_steps 7");
	run_boxes(&scratch, RETURNS "save_strategy: steps\nsave_steps: 5\n", 2, "--max_steps 9 --resume_from_checkpoint true");
	put_aside(&scratch, "without");
	make_ordered_rows(&scratch, 12, -1);
	run_spoiled(&scratch, RETURNS "save_strategy: steps\nsave_steps: 5\n", spoiled, "8", "--max_steps 10", 0, ran);
	for (int k = 0; k < 2; k++) {
		assert_non_null(strstr(ran[k].err, "all boxes return to "));
		assert_non_null(strstr(ran[k].err, "checkpoint-5, and will leave that step out"));
		assert_non_null(strstr(ran[k].err, "step 8 is left out: its gradient was not finite; 1 in a row, 1 in all"));
		run_free(&ran[k]);
	}
	for (int k = 1; k <= 2; k++)
		assert_true(distance(&scratch, "without", "out", k) == 0);
	scratch_close(&scratch);
}

static void test_boxes_return_and_leave_a_bad_step_out(void **state)
{
	(void)state;
	check_left_out(1);
	check_left_out(2);
}

/* Two of them in turn, before there is another checkpoint; metrics have each step once. */
static void test_boxes_return_twice(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran[2];
	char line[4096];
	make_files(&scratch);
	make_ordered_rows(&scratch, 12, -1);
	run_spoiled(&scratch, RETURNS "save_strategy: steps\nsave_steps: 3\n", 2, "5-6", "--max_steps 12", 0, ran);
	for (int k = 0; k < 2; k++) {
		assert_non_null(strstr(ran[k].err, "step 6 is left out: its gradient was not finite; 2 in a row, 2 in all"));
		run_free(&ran[k]);
		FILE *file = fopen(path_of("%s/out%d/metrics.jsonl", scratch.dir, k + 1), "r");
		assert_non_null(file);
		int step = 0;
		while (fgets(line, sizeof line, file)) {
			json_t *metrics = json_loads(line, 0, NULL);
			assert_int_equal(json_integer_value(json_object_get(metrics, "step")), ++step);
			json_decref(metrics);
		}
		assert_int_equal(step, 12);
		fclose(file);
	}
	scratch_close(&scratch);
}

static void test_boxes_without_a_checkpoint_stop(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran[2];
	make_files(&scratch);
	make_ordered_rows(&scratch, 12, -1);
	run_spoiled(&scratch, RETURNS "save_strategy: \"no\"\n", 1, "2", "--max_steps 6", 1, ran);
	for (int k = 0; k < 2; k++) {
		assert_non_null(strstr(ran[k].err, "there is no checkpoint of all boxes to return to"));
		run_free(&ran[k]);
	}
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_boxes_are_stages),
	        cmocka_unit_test(test_other_backwards),
	        cmocka_unit_test(test_updates_beside_their_box),
	        cmocka_unit_test(test_the_first_update_is_a_flushed_steps),
	        cmocka_unit_test(test_boxes_of_two_devices_are_stages),
	        cmocka_unit_test(test_adapters),
	        cmocka_unit_test(test_each_box_clips_by_its_share),
	        cmocka_unit_test(test_lines_tell_of_their_own_steps),
	        cmocka_unit_test(test_latency_changes_no_bit),
	        cmocka_unit_test(test_versions_of_units),
	        cmocka_unit_test(test_cut_lines_change_no_bit),
	        cmocka_unit_test(test_one_stage_is_plain_accumulation),
	        cmocka_unit_test(test_an_epoch_ends_with_a_short_window),
	        cmocka_unit_test(test_version_drift_keeps_to_its_bound),
	        cmocka_unit_test(test_a_killed_box_is_started_again),
	        cmocka_unit_test(test_boxes_return_and_leave_a_bad_step_out),
	        cmocka_unit_test(test_boxes_return_twice),
	        cmocka_unit_test(test_boxes_without_a_checkpoint_stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
