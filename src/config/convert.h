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
/* Converts another trainer's file. Each of its keys leaves lines in one of yaml, idle and left; one that is converted in part leaves lines
 * in yaml and in left. -EINVAL: the file is no YAML mapping; the error names the line. */
int rh_config_convert(const char *path, struct rh_converted *out) RH_MUST;
void rh_converted_free(struct rh_converted *converted);

#endif
