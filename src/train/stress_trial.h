/* A step on random tokens, to see that a length that was predicted can be trained. */
#ifndef RH_TRAIN_STRESS_TRIAL_H
#define RH_TRAIN_STRESS_TRIAL_H

#include "config/config.h"

#include <stdint.h>

/* Plain bytes: it goes through a pipe. */
struct rh_stress_tried {
	int64_t reserved_tokens; /* all memory that a step of so many takes is reserved; 0: it was not */
	int64_t step_tokens;     /* of the step that was trained in it; 0: none was */
	int chunks;              /* of that step */
	double step_seconds, norm;
	/* ram_planned_bytes: without what training takes and this does not: to write checkpoints, the tokenizer */
	int64_t ram_planned_bytes, ram_peak_bytes, device_planned_bytes, device_peak_bytes;
	char why[512]; /* the error line, where there was one; "": none */
};

/* Reserves what a step of one sequence of config->max_length random tokens takes, then trains one: forward, backward and update. `seconds`
 * are left and `predicted_s` is what the whole step should take: where there is not time for it, the step has as many tokens as there
 * should be time for. Writes nothing but to NVMe. reserved: NULL, or is called when all is reserved. A fault is in out->why. */
void rh_stress_try(const struct rh_config *config, double seconds, double predicted_s,
                   void (*reserved)(void *context, const struct rh_stress_tried *so_far), void *context, struct rh_stress_tried *out);

#endif
