/* What two boxes that distil send, and that they go on from their checkpoints. */
#ifndef RH_TESTS_CLI_DISTIL_LINE_H
#define RH_TESTS_CLI_DISTIL_LINE_H

#include "cli/distil.h"

/* What box 1 said of its line. */
static inline void read_line(char *said, long long *up, long long *down)
{
	const char *line = strstr(said, "link: ");
	assert_non_null(line);
	assert_int_equal(sscanf(line, "link: %lld bytes up to box 2, %lld from there", up, down), 2);
	free(said);
}

/* Bytes beyond those of a run without distillation, but for frames: `messages` more of them, and what acknowledges them. */
static inline void check_more(const char *what, long long more, long long payload, long long messages)
{
	enum { HEADER = 56, NOISE = 40 * HEADER }; /* two runs acknowledge alike messages in more or fewer frames */
	printf("%s: %lld bytes more, %lld of logits and ids\n", what, more, payload);
	if (more < payload - NOISE || more > payload + 3 * messages * HEADER + NOISE)
		fail_msg("%s: %lld bytes more, %lld of logits and ids", what, more, payload);
}

/* Stopped after each step and gone on from it, both boxes' checkpoints are those of a whole run without the options `how`. Frees the
 * scratch. */
static inline void check_resumes(struct scratch *scratch, const char *how)
{
	free(run_boxes(scratch, ""));
	move_outputs(scratch, "whole");
	for (int step = 1; step < STEPS; step++) {
		char options[64];
		snprintf(options, sizeof options, "--max_steps %d %s", step, how);
		free(run_boxes(scratch, options));
		free(run_boxes(scratch, path_of("--resume_from_checkpoint true %s", how)));
		for (int box = 1; box <= 2; box++)
			for (int at = step; at <= STEPS; at++)
				if (!is_same_step(scratch, "whole", box, at))
					fail_msg("stopped at step %d: box %d differs at step %d", step, box, at);
		for (int box = 1; box <= 2; box++)
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch->dir, box)));
	}
	scratch_close(scratch);
}

#endif
