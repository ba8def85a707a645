/* What happens to the lines, processes and strangers around boxes that train together: the run goes on, or resumes, to the bits of a run
 * that nothing happened to. */
#include "cli/boxes.h"
#include "link/relay.h"

#include "core/clock.h"

/* A run of several boxes, with a relay in each line. */
struct rig {
	struct scratch scratch;
	int boxes;
	char keys[BOXES_MOST][1024];
	struct box_wire wire[BOXES_MOST];
	struct relay relay[BOXES_MOST];
	struct ran ran[BOXES_MOST];
};

/* most_bytes: between two cuts of each line; 0: none is cut. */
static void rig_open(struct rig *rig, int boxes, const char *keys, int64_t most_bytes, int cuts)
{
	char secret[BOXES_MOST][512] = {0};
	*rig = (struct rig){.boxes = boxes};
	uint64_t seed = check_seed();
	make_files(&rig->scratch);
	make_keys(&rig->scratch, boxes, secret);
	for (int k = 0; k < boxes; k++)
		snprintf(rig->keys[k], sizeof rig->keys[k], "%s%s", keys, secret[k]);
	for (int k = 0; k + 1 < boxes; k++) {
		int port = free_port();
		relay_open(&rig->relay[k], most_bytes, seed + (uint64_t)k);
		rig->relay[k].most_cuts = cuts;
		snprintf(rig->wire[k].listens, sizeof rig->wire[k].listens, "127.0.0.1:%d", port);
		snprintf(rig->wire[k].connects, sizeof rig->wire[k].connects, "127.0.0.1:%d", rig->relay[k].port);
		relay_start(&rig->relay[k], port);
	}
}

static void rig_close(struct rig *rig)
{
	for (int k = 0; k + 1 < rig->boxes; k++)
		relay_close(&rig->relay[k]);
	scratch_close(&rig->scratch);
}

/* One box alone, whose bits all others must have. */
static void run_alone(struct rig *rig, const char *keys, const char *more)
{
	write_config(&rig->scratch, keys, 1, 0, NULL);
	run_ok(&rig->scratch, "train %s/run0.yaml%s", rig->scratch.dir, more);
}

static void start_box(struct rig *rig, int k, const char *more)
{
	write_config(&rig->scratch, rig->keys[k], rig->boxes, k + 1, rig->wire);
	run_start(&rig->scratch, path_of("train %s/run%d.yaml%s", rig->scratch.dir, k + 1, more), 0, &rig->ran[k]);
}

static void start_all(struct rig *rig, const char *more)
{
	for (int k = 0; k < rig->boxes; k++)
		start_box(rig, k, more);
}

static void finish_all(struct rig *rig)
{
	for (int k = 0; k < rig->boxes; k++)
		run_wait(&rig->ran[k]);
	for (int k = 0; k < rig->boxes; k++) {
		if (rig->ran[k].status)
			fail_msg("box %d of %d: exit %d: %s", k + 1, rig->boxes, rig->ran[k].status, rig->ran[k].err);
		run_free(&rig->ran[k]);
	}
}

#define PLAIN_KEYS "device: cpu:1\nlink_timeout: 2\nlink_give_up: 60\n"

/* Lines break again and again, in the greeting and in the middle of messages. */
static void test_every_line_cut_at_random_moments_changes_no_bit(void **state)
{
	(void)state;
	static const char keys[] = PLAIN_KEYS "save_strategy: \"no\"\n";
	int cuts = getenv("RH_LONG") ? 200 : 12;
	struct rig rig;
	char steps[64];
	snprintf(steps, sizeof steps, " --max_steps %d", 3 * cuts);
	rig_open(&rig, 3, keys, 20000, cuts);
	run_alone(&rig, keys, steps);
	start_all(&rig, steps);
	finish_all(&rig);
	for (int k = 0; k < 2; k++) {
		printf("line %d was cut %d times\n", k + 1, (int)rig.relay[k].cuts);
		assert_true(rig.relay[k].cuts >= cuts);
	}
	check_weights(&rig.scratch, "model.safetensors", 3);
	rig_close(&rig);
}

/* Boxes that wait for one another for ever fail, in place of the whole test. */
static void limit_time(void)
{
	alarm(300);
}

int main(void)
{
	run_prepare = limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_line_cut_at_random_moments_changes_no_bit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
