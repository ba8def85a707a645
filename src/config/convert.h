/* Another trainer's configuration (Axolotl's, LLaMA-Factory's, a file of TRL's or transformers' arguments) as one of this program. */
#ifndef RH_CONFIG_CONVERT_H
#define RH_CONFIG_CONVERT_H

#include "core/error.h"
#include "core/text.h"

#include <stdint.h>

struct rh_converted {
	struct rh_text yaml; /* lines that this program takes */
	struct rh_text idle; /* comment lines: keys that need nothing here, and why */
	struct rh_text left; /* comment lines: what could not be converted, and what comes nearest */
	int64_t converteds, idles, lefts;
};
/* Each key of the file goes to one of the three, some to two. -EINVAL: the file is no YAML mapping, with its line. */
int rh_config_convert(const char *path, struct rh_converted *out) RH_MUST;
void rh_converted_free(struct rh_converted *converted);

#endif
