/* roundhouse join: one model out of what several boxes have trained. */
#include "ckpt/join.h"

#include "cli/output.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "core/log.h"

int verb_join(const struct rh_config *config)
{
	int64_t tensors = 0;
	int rc = verb_check_output(config, "output_dir", config->output_dir, OUTPUT_MODEL);
	if (!rc)
		rc = rh_join((const char *const *)config->parts.item, (int)config->parts.count, config->output_dir, &tensors);
	if (rc)
		return rc;
	rh_note("written to %s: %lld tensors of %zu parts", config->output_dir, (long long)tensors, config->parts.count);
	return config->json ? verb_print_json(json_pack("{s:s, s:I}", "written", config->output_dir, "tensors", (json_int_t)tensors)) : 0;
}
