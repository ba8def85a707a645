/* `plan` over boxes as a person asks for it: the same answer twice, faster links never slower, and a break-even that holds. */
#include "cli/good.h"
#include "cli/runner.h"
#include "limit_time.h"

#include "core/json.h"

#include <math.h>
#include <unistd.h>

enum { HANG_S = 300 };

#define FLUSHED "--mode sync-pp --link_latency_ms 0.01 "

/* What `plan --json` printed. Frees the run. */
static json_t *json_of(struct ran ran)
{
	json_t *json = json_loads(ran.out, 0, NULL);
	if (!json)
		fail_msg("%s", ran.err);
	run_free(&ran);
	return json;
}

static json_t *planned(const struct scratch *scratch, const char *more)
{
	json_t *json = json_of(run_line(scratch,
	                                "plan %s/run.yaml --hardware rtx4090x1 --boxes 2 --lora_r 4 --eval_strategy no "
	                                "--save_total_limit 2 --gradient_accumulation_steps 8 %s --json",
	                                scratch->dir, more));
	return json;
}

static double number(const json_t *json, const char *name)
{
	return json_number_value(json_object_get(json, name));
}

static void test_faster_links_are_faster_and_break_even_holds(void **state)
{
	(void)state;
	struct scratch scratch;
	char speed[128];
	make_good(&scratch);
	json_t *json = planned(&scratch, FLUSHED), *again = planned(&scratch, FLUSHED), *links = json_object_get(json, "links");
	assert_true(json_equal(json, again));
	assert_int_equal(json_array_size(json_object_get(json, "boxes")), 2);
	for (size_t i = 1; i < json_array_size(links); i++)
		assert_true(number(json_array_get(links, i), "tokens_per_second") >=
		            0.97 * number(json_array_get(links, i - 1), "tokens_per_second"));
	assert_true(number(json_array_get(links, 0), "tokens_per_second") < number(json_array_get(links, 4), "tokens_per_second"));
	double alone = number(json, "alone_tokens_per_second"), even = number(json, "break_even_mbit_per_second");
	assert_true(alone > 0);
	for (int i = 0; even > 0 && i < 2; i++) {
		snprintf(speed, sizeof speed, FLUSHED "--link_mbit_per_second %.3f", i ? 2 * even : even / 2);
		json_t *at = planned(&scratch, speed);
		assert_int_equal(number(at, "tokens_per_second") > alone, i);
		json_decref(at);
	}
	if (!(even > 0))
		assert_true(number(json_array_get(links, 4), "tokens_per_second") <= alone);
	json_decref(json);
	json_decref(again);
	scratch_close(&scratch);
}

/* The cut of two boxes. */
static int cut_of(const json_t *json)
{
	return (int)json_integer_value(json_object_get(json_array_get(json_object_get(json, "boxes"), 1), "first_layer"));
}

/* A boundary of such rows takes 256 MiB, more than half of a frozen layer: boxes that choose their cuts leave room for their messages. Even
 * cuts need 11.3 GiB of each with one device, 13.4 with two. */
static void test_cuts_that_boxes_choose_leave_room_for_messages(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	write_text(path_of("%s/run.yaml", scratch.dir), "config_name: examples/models/llama-3.1-8b\nmax_length: 32768\nlora_r: 16\n"
	                                                "per_device_train_batch_size: 1\ngradient_accumulation_steps: 16\n"
	                                                "mode: sync-pp\nboxes: 2\nbox: 1\n");
	for (int devices = 1; devices <= 2; devices++)
		for (int gib = 9 + 3 * devices; gib <= 11 + 4 * devices; gib++) {
			struct ran ran =
			        run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x%d --max_ram %dGiB", scratch.dir, devices, gib);
			if (ran.status || !strstr(ran.out, "box 2 "))
				fail_msg("%d devices, %d GiB: exit %d: %s%s", devices, gib, ran.status, ran.out, ran.err);
			run_free(&ran);
		}
	scratch_close(&scratch);
}

/* On a slow link PACI's own limits leave bubbles; those that plan chooses are what it forecasts when they are given with its cuts, and no
 * other cut with limits of its own is faster by more than the 3 % that limits may lose. */
static void test_limits_are_chosen_for_the_link(void **state)
{
	(void)state;
	enum { LAYERS = 4 }; /* embedding, two of the transformer, head */
	static const char distant[] = "--mode paci --max_grad_norm 0 --max_length 64 --link_latency_ms 5 --link_mbit_per_second 10000";
	struct scratch scratch;
	char far[256], given[512];
	make_good(&scratch);
	json_t *chosen = planned(&scratch, distant);
	int limit[2];
	for (int cut = 1; cut < LAYERS; cut++) {
		snprintf(far, sizeof far, "%s --box_cuts %d", distant, cut);
		json_t *other = planned(&scratch, far);
		assert_true(number(chosen, "step_seconds") <= 1.03 * number(other, "step_seconds"));
		json_decref(other);
	}
	snprintf(far, sizeof far, "%s --box_cuts %d", distant, cut_of(chosen));
	for (int k = 0; k < 2; k++)
		limit[k] = (int)json_integer_value(
		        json_object_get(json_array_get(json_object_get(chosen, "boxes"), (size_t)k), "admission_limit"));
	assert_true(limit[0] > 2 && limit[1] == 1);
	snprintf(given, sizeof given, "%s --admission_limits %d,1", far, limit[0]);
	json_t *same = planned(&scratch, given);
	snprintf(given, sizeof given, "%s --admission_limits 2,1", far);
	json_t *own = planned(&scratch, given);
	assert_true(number(same, "step_seconds") == number(chosen, "step_seconds"));
	assert_true(number(own, "step_seconds") > 1.03 * number(chosen, "step_seconds"));
	snprintf(given, sizeof given, "%s --max_version_drift 1", far);
	json_t *bounded = planned(&scratch, given); /* 8 units a step: 9 in flight */
	assert_true(json_integer_value(json_object_get(json_array_get(json_object_get(bounded, "boxes"), 0), "admission_limit")) <= 9);
	json_decref(chosen);
	json_decref(same);
	json_decref(own);
	json_decref(bounded);
	scratch_close(&scratch);
}

/* A faster link is never slower, but for the 3 % that limits may lose; and the table says the same of each speed, whichever of them the
 * configuration names: a run over such links would choose these cuts and limits. */
static void test_faster_links_are_faster_where_cuts_and_limits_are_chosen(void **state)
{
	(void)state;
	enum { SPEEDS = 3, ROW = 2 }; /* of the table: 300, 1000 and 10000 Mbit/s are its last */
	static const char *const models[] = {"llama-3.1-8b", "qwen3-1.7b"}, *const speeds[SPEEDS] = {"300", "1000", "10000"};
	struct scratch scratch;
	scratch_open(&scratch);
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		double table[SPEEDS][SPEEDS], own[SPEEDS];
		for (int i = 0; i < SPEEDS; i++) {
			json_t *json = json_of(run_line(&scratch,
			                                "plan --config_name examples/models/%s --hardware rtx4090x1 --mode paci --boxes 2 "
			                                "--lora_r 16 --max_length 2048 --per_device_train_batch_size 1 --dtype bfloat16 "
			                                "--gradient_accumulation_steps 8 --max_grad_norm 0 --link_latency_ms 5 "
			                                "--link_mbit_per_second %s --json",
			                                models[m], speeds[i]));
			own[i] = number(json, "tokens_per_second");
			for (int row = 0; row < SPEEDS; row++)
				table[i][row] =
				        number(json_array_get(json_object_get(json, "links"), (size_t)(ROW + row)), "tokens_per_second");
			printf("%s, %s Mbit/s: %.1f tokens/s; table %.1f, %.1f, %.1f\n", models[m], speeds[i], own[i], table[i][0],
			       table[i][1], table[i][2]);
			json_decref(json);
		}
		for (int i = 0; i < SPEEDS; i++) {
			assert_true(own[i] > 0 && 1.03 * own[i] >= own[i ? i - 1 : 0]);
			assert_true(own[i] <= 1.0001 * table[i][i] && 1.03 * own[i] >= table[i][i]);
			for (int row = 0; row < SPEEDS; row++)
				assert_true(table[i][row] == table[0][row]);
		}
	}
	scratch_close(&scratch);
}

/* Four devices in each box, each with units of its own, make mode paci nearly four times as fast: none waits for all of another one's
 * gradient sums, forwards and backwards are spread over all, and limits let in a unit for each. */
static void test_mode_paci_uses_all_devices_of_a_box(void **state)
{
	(void)state;
	struct scratch scratch;
	double speed[2];
	scratch_open(&scratch);
	for (int devices = 1; devices <= 4; devices += 3) {
		json_t *json = json_of(
		        run_line(&scratch,
		                 "plan --config_name examples/models/qwen3-1.7b --hardware rtx4090x8 --gpus %d --mode paci --boxes 2 "
		                 "--lora_r 16 --max_length 2048 --per_device_train_batch_size 1 --dtype bfloat16 "
		                 "--gradient_accumulation_steps 32 --round_micro_batches 1 --max_grad_norm 0 --link_latency_ms 0.01 "
		                 "--link_mbit_per_second 10000 --json",
		                 devices));
		speed[devices > 1] = number(json, "tokens_per_second");
		printf("%d devices a box: %.1f tokens/s\n", devices, speed[devices > 1]);
		json_decref(json);
	}
	assert_true(speed[1] > 3.4 * speed[0]);
	scratch_close(&scratch);
}

/* Uploads of weights can make other cuts faster than those that the boxes choose, who know their layers' times alone. A plan with the cuts
 * that the first one names is as much faster as that said. */
static void test_better_cuts_are_as_fast_as_said(void **state)
{
	(void)state;
	struct scratch scratch;
	double speed[2], gain = 0;
	char cuts[64] = "";
	scratch_open(&scratch);
	for (int given = 0; given < 2; given++) {
		json_t *json = json_of(
		        run_line(&scratch,
		                 "plan --config_name examples/models/llama-3.1-8b --hardware rtx4090x8 --gpus 1 --mode sync-pp --boxes 2 "
		                 "--use_peft false --max_length 2048 --per_device_train_batch_size 1 --dtype bfloat16 "
		                 "--gradient_accumulation_steps 16 --round_micro_batches 8 --link_latency_ms 5 "
		                 "--link_mbit_per_second 10000 %s --json",
		                 cuts));
		const json_t *better = json_object_get(json, "better_cuts");
		speed[given] = number(json, "tokens_per_second");
		if (!given) {
			gain = number(better, "gain");
			snprintf(cuts, sizeof cuts, "--box_cuts %lld",
			         (long long)json_integer_value(json_array_get(json_object_get(better, "box_cuts"), 0)));
		} else {
			assert_true(json_is_null(better));
		}
		json_decref(json);
	}
	printf("%s: %.1f tokens/s, %.1f chosen\n", cuts, speed[1], speed[0]);
	assert_true(gain > 0.01);
	check_near(speed[1], (1 + gain) * speed[0], 1e-6 * speed[1]);
	scratch_close(&scratch);
}

/* Whichever of the two pipelines is asked for, plan simulates both, and says which of them, or one box alone, is the fastest. */
static void test_pipelines_are_compared(void **state)
{
	(void)state;
	static const char near[] =
	        "--max_grad_norm 0 --max_length 64 --link_latency_ms %s --link_mbit_per_second 10000 --box_cuts 2 --mode %s";
	static const char *const latency[] = {"0.001", "200"};
	struct scratch scratch;
	char keys[256];
	make_good(&scratch);
	for (int far = 0; far < 2; far++) {
		json_t *modes[2];
		double alone = 0, own[2];
		for (int i = 0; i < 2; i++) {
			snprintf(keys, sizeof keys, near, latency[far], i ? "paci" : "sync-pp");
			json_t *json = planned(&scratch, keys);
			alone = number(json, "alone_tokens_per_second");
			own[i] = number(json, "tokens_per_second");
			modes[i] = json_incref(json_object_get(json, "modes"));
			json_decref(json);
		}
		const char *schedule = json_string_value(json_object_get(modes[0], "schedule"));
		assert_true(number(modes[0], "paci") == own[1] && number(modes[1], "paci") == own[1]);
		assert_true(number(modes[0], "sync-pp") == number(modes[1], "sync-pp"));
		assert_true(strcmp(schedule, "1f1b") ? number(modes[0], "sync-pp") > own[0] : number(modes[0], "sync-pp") == own[0]);
		assert_true(own[1] > own[0]);
		for (int i = 0; i < 2; i++) {
			assert_string_equal(json_string_value(json_object_get(modes[i], "fastest")), alone >= own[1] ? "local" : "paci");
			json_decref(modes[i]);
		}
	}
	scratch_close(&scratch);
}

/* What a person gets from plan of mode paci and of 1F1B on equal boxes, where nothing waits for copies, links or the optimizer. A
 * micro-batch takes each box a forward, the same again to recompute, and two forwards' time for the backward; the last box has the 8B's
 * head in place of recomputation, which takes about as long. 1F1B adds N - 1 forwards to fill the pipeline and N - 1 backwards to drain
 * it: while a box waits for a gradient, it recomputes. */
static void test_paci_over_1f1b_is_the_bubble(void **state)
{
	(void)state;
	enum { BOXES = 4, ACCUMULATION = 8 };
	static const char *const slow[][2] = {{"up_bytes_per_s: 25e9", "up_bytes_per_s: 25e13"},
	                                      {"down_bytes_per_s: 26e9", "down_bytes_per_s: 26e13"},
	                                      {"both_bytes_per_s: 44e9", "both_bytes_per_s: 44e13"},
	                                      {"dram_bytes_per_s: 150.0e9", "dram_bytes_per_s: 150.0e13"},
	                                      {"split: 145.5e9, plain: 145.5e9", "split: 145.5e13, plain: 145.5e13"}};
	struct scratch scratch;
	double tokens_per_s[2];
	char path[512];
	scratch_open(&scratch);
	snprintf(path, sizeof path, "%s/wide.yaml", scratch.dir);
	copy_file("examples/hardware/rtx4090x8.yaml", path);
	for (size_t i = 0; i < sizeof slow / sizeof *slow; i++)
		edit_file(path, slow[i][0], slow[i][1]);
	for (int i = 0; i < 2; i++) {
		json_t *json =
		        json_of(run_line(&scratch,
		                         "plan --config_name examples/models/llama-3.1-8b --hardware %s --gpus 1 --mode %s --boxes %d "
		                         "--box_cuts 9,17,25 --max_length 1024 --per_device_train_batch_size 1 --dtype bfloat16 "
		                         "--gradient_accumulation_steps %d --max_grad_norm 0 --link_latency_ms 0 "
		                         "--link_mbit_per_second 10000000 --json",
		                         path, i ? "sync-pp --schedule 1f1b" : "paci", (int)BOXES, (int)ACCUMULATION));
		tokens_per_s[i] = number(json, "tokens_per_second");
		json_decref(json);
	}
	double ratio = tokens_per_s[0] / tokens_per_s[1], formula = (4.0 * ACCUMULATION + 3.0 * (BOXES - 1)) / (4.0 * ACCUMULATION);
	printf("paci over 1f1b: %.4f, formula %.4f\n", ratio, formula);
	assert_true(fabs(ratio - formula) <= 0.03 * formula);
	scratch_close(&scratch);
}

/* LoRA of an 8B on two RTX 4090: where links break even they carry a row's activations in the time that one box takes for it. What fill
 * and drain of 16 units, and latency, add is below a tenth. */
static void test_break_even_is_a_rows_bytes_over_its_time_alone(void **state)
{
	(void)state;
	enum { TOKENS = 2048, HIDDEN = 4096 };
	static const char *const dtypes[] = {"dtype", "int8"};
	struct scratch scratch;
	scratch_open(&scratch);
	for (int i = 0; i < 2; i++) {
		json_t *json = json_of(
		        run_line(&scratch,
		                 "plan --config_name examples/models/llama-3.1-8b --hardware rtx4090x1 --mode sync-pp --boxes 2 "
		                 "--max_length %d --per_device_train_batch_size 1 --dtype bfloat16 --lora_r 16 --link_latency_ms 10 "
		                 "--gradient_accumulation_steps 64 --round_micro_batches 4 --link_dtype %s --json",
		                 (int)TOKENS, dtypes[i]));
		double bits = 8.0 * TOKENS * (i ? HIDDEN + 4 : 2 * HIDDEN), row_s = TOKENS / number(json, "alone_tokens_per_second"),
		       even = number(json, "break_even_mbit_per_second"), least = bits / row_s / 1e6;
		printf("%s: break-even %.0f Mbit/s, a row's bytes over its time alone %.0f\n", dtypes[i], even, least);
		assert_true(even >= 0.99 * least && even <= 1.1 * least);
		json_decref(json);
	}
	scratch_close(&scratch);
}

/* Mode fluidpipe beside the others: where links are slow one box alone is the fastest; the papers' formulas are of what was simulated;
 * bytes are those of the activations. */
static void test_modes_are_compared(void **state)
{
	(void)state;
	enum { LINKS = 9, TOKENS = 256, HIDDEN = 2048, STEPS = 8 };
	struct scratch scratch;
	scratch_open(&scratch);
	struct ran ran = run_line(
	        &scratch,
	        "plan --config_name examples/models/qwen3-1.7b --lora_r 8 --hardware rtx4090x1 --mode fluidpipe --boxes 2 --max_length %d "
	        "--per_device_train_batch_size 1 --dtype bfloat16 --gradient_accumulation_steps %d --eval_strategy no "
	        "--link_latency_ms 12.5 --compare --json",
	        (int)TOKENS, (int)STEPS);
	json_t *json = json_loads(ran.out, 0, NULL), *modes = json_object_get(json, "modes"), *links = json_object_get(modes, "links");
	if (!modes)
		fail_msg("%s", ran.err);
	assert_int_equal(json_array_size(links), LINKS);
	for (size_t i = 0; i < LINKS; i++) {
		json_t *link = json_array_get(links, i), *speeds = json_object_get(link, "tokens_per_second"), *speed;
		const char *name;
		assert_int_equal(json_object_size(speeds), 4);
		assert_true(number(speeds, "local") == number(json, "alone_tokens_per_second"));
		json_object_foreach(speeds, name, speed)
		        assert_true(json_number_value(speed) <= number(speeds, json_string_value(json_object_get(link, "fastest"))));
		if (i % 3 == 0)
			assert_string_equal(json_string_value(json_object_get(link, "fastest")), "local");
	}
	/* FluidPipe's speed does not know the round trip, the synchronous pipeline's does */
	json_t *near = json_object_get(json_array_get(links, 2), "tokens_per_second"),
	       *far = json_object_get(json_array_get(links, 8), "tokens_per_second");
	assert_true(number(far, "fluidpipe") > 0.97 * number(near, "fluidpipe"));
	assert_true(number(far, "sync-pp") < 0.8 * number(near, "sync-pp"));
	assert_true(number(modes, "steps") == 1);
	assert_true(number(modes, "bytes") == (double)STEPS * TOKENS * HIDDEN * 2);
	assert_true(number(modes, "bytes_with_gradients") == 2 * number(modes, "bytes"));
	double simulated_s = number(json, "step_seconds"), paper_s = number(modes, "papers_fluidpipe_seconds");
	assert_true(paper_s > 0.9 * simulated_s); /* the paper adds transfers to computation */
	assert_true(number(modes, "papers_pipeline_seconds") > number(json, "step_seconds"));
	json_decref(json);
	run_free(&ran);
	scratch_close(&scratch);
}

/* Of a classification that distils each text's logits go up, and once an epoch come down with their ids. */
static void test_logits_are_counted(void **state)
{
	(void)state;
	enum { TEXTS = 32, TOKENS = 128, HIDDEN = 1024, LABELS = 2 };
	static const char *const recipes[] = {"FP-ND", "FP-DT"};
	struct scratch scratch;
	scratch_open(&scratch);
	for (int i = 0; i < 2; i++) {
		struct ran ran = run_line(&scratch,
		                          "plan examples/models/bert-large.yaml --hardware rtx4090x1 --mode fluidpipe --boxes 2 "
		                          "--fluidpipe_recipe %s --json",
		                          recipes[i]);
		json_t *json = json_loads(ran.out, 0, NULL), *modes = json_object_get(json, "modes");
		if (!modes)
			fail_msg("%s", ran.err);
		double logits = LABELS * sizeof(float), features = (double)TEXTS * TOKENS * HIDDEN * 2;
		assert_true(number(modes, "bytes") == features + i * TEXTS * (logits + logits + sizeof(int32_t)));
		assert_true(number(modes, "bytes_with_gradients") == 2 * features);
		assert_true(json_is_true(json_object_get(modes, "pays_down")) && json_is_true(json_object_get(modes, "pays_both")));
		assert_true(number(modes, "papers_sequential_seconds") > number(modes, "papers_fluidpipe_seconds"));
		assert_true(number(json_object_get(modes, "tokens_per_second"), "sync-pp") > 0);
		assert_true(number(json_object_get(modes, "tokens_per_second"), "paci") > 0);
		json_decref(json);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

static double wait_behind_epoch(const struct scratch *scratch, const char *more)
{
	struct ran ran = run_line(scratch,
	                          "plan examples/models/bert-large.yaml --hardware rtx4090x1 --mode fluidpipe --boxes 2 "
	                          "--link_mbit_per_second 100 --link_latency_ms 500 --fluidpipe_recipe %s --json",
	                          more);
	json_t *json = json_loads(ran.out, 0, NULL), *modes = json_object_get(json, "modes");
	if (!modes)
		fail_msg("%s", ran.err);
	double wait_s = number(modes, "fluidpipe_wait_seconds"), steps_s = number(modes, "steps") * number(json, "step_seconds");
	assert_true(fabs(number(modes, "fluidpipe_seconds") - steps_s - wait_s) < 1e-9 * steps_s);
	json_decref(json);
	run_free(&ran);
	return wait_s;
}

/* An epoch whose logits come down is as long as its steps and a wait for them: two round trips (test_forecast_boxes.c), where they stream
 * one. */
static void test_epoch_waits_for_its_logits(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	double bulk_s = wait_behind_epoch(&scratch, "FP-DT"), stream_s = wait_behind_epoch(&scratch, "FP-DT --fluidpipe_logits stream");
	printf("an epoch waits %.3f s for its logits, where they stream %.3f s\n", bulk_s, stream_s);
	assert_true(wait_behind_epoch(&scratch, "FP-ND") == 0);
	assert_true(stream_s > 1 && stream_s < 2 && fabs(bulk_s - stream_s - 1) < 0.01);
	scratch_close(&scratch);
}

/* Of a language model that distils each target's shares, 8 bytes a likeliest token; those that come down have their targets' numbers. */
static void test_shares_are_counted(void **state)
{
	(void)state;
	enum { TOKENS = 256, TARGETS = 255, HIDDEN = 2048, MICROS = 8, TOP = 32 };
	struct scratch scratch;
	scratch_open(&scratch);
	for (int distils = 0; distils < 3; distils++) { /* bits: box 1, box 2; not both */
		struct ran ran = run_line(&scratch,
		                          "plan --config_name examples/models/qwen3-1.7b --lora_r 8 --hardware rtx4090x1 --mode fluidpipe "
		                          "--boxes 2 --max_length %d --per_device_train_batch_size 1 --gradient_accumulation_steps %d %s "
		                          "--fluidpipe_top_k %d --json",
		                          (int)TOKENS, (int)MICROS,
		                          distils == 1   ? "--fluidpipe_alpha1 0.5"
		                          : distils == 2 ? "--fluidpipe_alpha2 0.5"
		                                         : "",
		                          distils ? (int)TOP : 0);
		json_t *json = json_loads(ran.out, 0, NULL), *modes = json_object_get(json, "modes");
		if (!modes)
			fail_msg("%s", ran.err);
		double features = (double)MICROS * TOKENS * HIDDEN * 2,
		       shares = (double)MICROS * TARGETS * (8 * TOP + (distils == 1 ? 4 : 0));
		assert_true(number(modes, "bytes") == features + (distils ? shares : 0));
		json_decref(json);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* In one line, before boxes meet or are cut. */
static void test_a_schedule_that_orders_no_boxes_is_refused(void **state)
{
	(void)state;
	static const char *const verbs[] = {"plan --hardware rtx4090x1", "train --output_dir x --box 2 --link_below 127.0.0.1:9"};
	static const char *const schedules[] = {"zb-v", "interleaved-1f1b", "looped-bfs", "mobius"}; /* several stages a device */
	struct scratch scratch;
	scratch_open(&scratch);
	for (int i = 0; i < 8; i++) {
		struct ran ran =
		        run_line(&scratch, "%s --config_name examples/models/qwen3-1.7b --mode sync-pp --boxes 2 --lora_r 16 --schedule %s",
		                 verbs[i % 2], schedules[i / 2]);
		check_failed(&ran,
		             path_of("schedule: '%s' does not order boxes in mode sync-pp; choose gpipe, 1f1b, zb-h1, ", schedules[i / 2]));
		run_free(&ran);
	}
	scratch_close(&scratch);
}

int main(void)
{
	limit_time(HANG_S);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_schedule_that_orders_no_boxes_is_refused),
	                                   cmocka_unit_test(test_faster_links_are_faster_and_break_even_holds),
	                                   cmocka_unit_test(test_cuts_that_boxes_choose_leave_room_for_messages),
	                                   cmocka_unit_test(test_limits_are_chosen_for_the_link),
	                                   cmocka_unit_test(test_faster_links_are_faster_where_cuts_and_limits_are_chosen),
	                                   cmocka_unit_test(test_break_even_is_a_rows_bytes_over_its_time_alone),
	                                   cmocka_unit_test(test_modes_are_compared),
	                                   cmocka_unit_test(test_mode_paci_uses_all_devices_of_a_box),
	                                   cmocka_unit_test(test_better_cuts_are_as_fast_as_said),
	                                   cmocka_unit_test(test_pipelines_are_compared),
	                                   cmocka_unit_test(test_paci_over_1f1b_is_the_bubble),
	                                   cmocka_unit_test(test_logits_are_counted),
	                                   cmocka_unit_test(test_epoch_waits_for_its_logits),
	                                   cmocka_unit_test(test_shares_are_counted)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
