/* Rotary frequencies: a model's configuration of them, and the table that an op takes. */
#ifndef RH_MODEL_ROPE_H
#define RH_MODEL_ROPE_H

#include "device/op.h"

enum rh_rope_type { RH_ROPE_DEFAULT, RH_ROPE_LINEAR, RH_ROPE_LLAMA3, RH_ROPE_DYNAMIC, RH_ROPE_YARN, RH_ROPE_LONGROPE,
                    RH_ROPE_PROPORTIONAL, RH_ROPE_TYPES };

extern const char *const rh_rope_type_name[RH_ROPE_TYPES]; /* as config.json has them */

/* One table's parameters. Those that its type does not use are 0. */
struct rh_rope {
	enum rh_rope_type type;
	double theta, factor;
	double low_freq_factor, high_freq_factor; /* llama3 */
	int64_t original_max_position;            /* llama3, yarn, longrope; for dynamic the model's longest position */
	double attention_factor;                  /* of cosines and sines; yarn and longrope, 0: derived */
	double beta_fast, beta_slow;              /* yarn, as are the next three; 0: 32 and 1 */
	double mscale, mscale_all_dim;            /* 0: not said */
	double growth;                            /* see ROPE_TABLE, whose step is original_max_position */
	int64_t width;                            /* proportional: of the head, whose first pairs alone turn */
	int plain_ramp;                           /* the ramp's ends are not rounded to whole pairs */
	float long_factor[RH_ROPE_MAX_HALF], short_factor[RH_ROPE_MAX_HALF]; /* longrope */
	float *divisor; /* factors from a GGUF file's rope_freqs.weight, which replace the scaling above; else NULL */
};

/* What ROPE_TABLE takes. */
struct rh_rope_table {
	float inv_freq[RH_ROPE_MAX_HALF];
	float scale;
};

/* The table for `rotary` elements of each head, where the largest position is `positions` - 1 (only dynamic and longrope depend on
 * that). Computed in fp32 where transformers computes in fp32. */
void rh_rope_table(const struct rh_rope *rope, int64_t rotary, int64_t positions, struct rh_rope_table *out);

/* Does the table depend on the positions? */
int rh_rope_varies(const struct rh_rope *rope);

#endif
