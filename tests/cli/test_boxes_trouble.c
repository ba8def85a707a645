/* Boxes of one pipeline whose gradient is not finite where no clipping could skip the step: all return to a checkpoint, and together they
 * compute what one box does that returns. */
#include "cli/sync_boxes.h"

/* Boxes 1 to `boxes`, or one alone; the gradients of box `spoilt` hold a NaN in these steps. */
static void run_spoilt(const struct scratch *scratch, const char *keys, int boxes, int spoilt, const char *steps, const char *part)
{
	struct box_wire wire[BOXES_MOST];
	struct ran ran[BOXES_MOST + 1];
	int first = boxes ? 1 : 0;
	for (int k = 0; k < BOXES_MOST; k++)
		wire[k] = free_wire();
	for (int k = first; k <= boxes; k++) {
		write_config(scratch, keys, boxes, k, wire);
		if (k == spoilt)
			setenv("RH_SPOIL_STEPS", steps, 1);
		run_prepare = boxes_limit_time;
		run_start(scratch, path_of("train %s/run%d.yaml" TWENTY_STEPS, scratch->dir, k), 0, &ran[k]);
		unsetenv("RH_SPOIL_STEPS");
	}
	for (int k = first; k <= boxes; k++) {
		run_wait(&ran[k]);
		if (ran[k].status || !strstr(ran[k].err, part))
			fail_msg("box %d of %d: exit %d: %s", k, boxes, ran[k].status, last_lines(ran[k].err));
	}
	for (int k = first; k <= boxes; k++)
		run_free(&ran[k]);
}

/* Steps 3 and 4 in turn: both times there is the checkpoint of step 2 alone. */
static void check_returns(const char *more, int boxes, int adapters)
{
	struct scratch scratch;
	char keys[256];
	make_files(&scratch);
	snprintf(keys, sizeof keys, "save_steps: 2\nmax_grad_norm: 0\ndevice: cpu:1\n%s", more);
	static const char told[] = "step 4 is left out: its gradient was not finite; 2 in a row, 2 in all";
	run_spoilt(&scratch, keys, 0, 0, "3-4", told);
	for (int spoilt = 1; spoilt <= boxes; spoilt++) {
		run_spoilt(&scratch, keys, boxes, spoilt, "3-4", told);
		check_weights(&scratch, adapters ? "adapter_model.safetensors" : "model.safetensors", adapters ? 1 : boxes);
		for (int k = 1; k <= boxes; k++) {
			assert_true(check_metrics(&scratch, k, 0) >= 20);
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch.dir, k)));
		}
	}
	scratch_close(&scratch);
}

static void test_boxes_return_and_leave_bad_steps_out(void **state)
{
	(void)state;
	check_returns("", 2, 0);
	check_returns("lora_r: 4\n", 3, 1);
}

/* A box is asked to stop while all return to step 2's checkpoint, behind which step 3 is left out: none of its messages tells the other. */
static void test_a_box_asked_to_stop_before_a_step_left_out_stops_both(void **state)
{
	(void)state;
	for (int asked = 1; asked <= 2; asked++) {
		struct scratch scratch;
		struct ran ran[2];
		struct box_wire wire = free_wire();
		int step = 20;
		make_files(&scratch);
		for (int k = 1; k <= 2; k++) {
			write_config(&scratch, "save_steps: 2\nmax_grad_norm: 0\ndevice: cpu:1\n", 2, k, &wire);
			if (k == 1)
				setenv("RH_SPOIL_STEPS", "3", 1);
			run_prepare = boxes_limit_time;
			run_start(&scratch, path_of("train %s/run%d.yaml" TWENTY_STEPS, scratch.dir, k), 0, &ran[k - 1]);
			unsetenv("RH_SPOIL_STEPS");
		}
		for (int tries = 0; !find_or_not(ran[asked - 1].err_path, "the run returns to") && tries < 60000; tries++)
			usleep(1000);
		kill(ran[asked - 1].pid, SIGTERM);
		boxes_finish(ran, 2);
		while (step > 0 && !is_there(&scratch, asked, step))
			step--;
		printf("box %d was asked, both stopped after step %d\n", asked, step);
		assert_true(step > 3 && step < 20 && is_there(&scratch, 3 - asked, step));
		scratch_close(&scratch);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_boxes_return_and_leave_bad_steps_out),
	        cmocka_unit_test(test_a_box_asked_to_stop_before_a_step_left_out_stops_both),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
