/* A run that goes on from a checkpoint: is it the same one? */
#include "train/training.h"

#include "ckpt/prompts.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

#include <inttypes.h>
#include <string.h>

/* An adapter goes on beside the weights that it was trained on. */
static int check_base(const struct training *run, const char *checkpoint)
{
	char said[RH_DIGEST];
	if (!*run->session.base_digest)
		return 0;
	int rc = rh_prompts_base(checkpoint, said, sizeof said);
	if (!rc && *said && strcmp(said, run->session.base_digest))
		rc = rh_fail(
		        -EINVAL,
		        "resume_from_checkpoint: %s was trained on other weights than those of %s; name the base that it was trained on, "
		        "or begin a new run with adapter_name_or_path",
		        checkpoint, run->config->model_name_or_path);
	return rc;
}

/* 1, 0, or negative errno. */
static int holds(const char *checkpoint, const char *name)
{
	char *path = rh_path_join(checkpoint, name);
	int there = path ? rh_file_exists(path) : -ENOMEM;
	rh_free(path);
	return there;
}

static int has_name(char *const *names, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (!strcmp(names[i], name))
			return 1;
	return 0;
}

/* Of two lists of names; patterns and parts of names are not compared. */
static int has_same_targets(const struct rh_peft_config *left, const struct rh_peft_config *right)
{
	if (left->target_is_pattern || right->target_is_pattern || left->all_linear || right->all_linear)
		return 1;
	int same = left->targets == right->targets;
	for (size_t i = 0; i < left->targets && same; i++)
		same = has_name(right->target, right->targets, left->target[i]);
	return same;
}

static int fail_targets(const char *checkpoint, const struct rh_peft_config *then)
{
	struct rh_text names = {0};
	int rc = 0;
	for (size_t i = 0; !rc && i < then->targets; i++)
		rc = rh_text_printf(&names, "%s%s", i ? ", " : "", then->target[i]);
	if (!rc)
		rc = rh_fail(-EINVAL, "resume_from_checkpoint: %s holds an adapter of other modules; give lora_target_modules: [%s]",
		             checkpoint, names.bytes ? names.bytes : "");
	rh_text_free(&names);
	return rc;
}

/* Weights of another shape than the checkpoint's cannot go on. */
static int check_adapter(const struct training *run, const char *checkpoint)
{
	const struct rh_peft_config *now = &run->session.adapter.peft;
	struct rh_peft_config then = {0};
	int is_adapter = holds(checkpoint, "adapter_config.json"), is_model = holds(checkpoint, "config.json");
	if (is_adapter < 0 || is_model < 0)
		return -ENOMEM;
	if (run->session.lora && !is_adapter && is_model)
		return rh_fail(-EINVAL,
		               "resume_from_checkpoint: %s holds all weights, and this run trains an adapter; leave the lora_ keys and "
		               "use_peft out, or begin a new run on it with model_name_or_path: %s",
		               checkpoint, checkpoint);
	int rc = is_adapter ? rh_peft_config_load(checkpoint, &then) : 0;
	if (rc || !is_adapter)
		return rc;
	if (!run->session.lora)
		rc = rh_fail(-EINVAL,
		             "resume_from_checkpoint: %s holds an adapter, and this run trains all weights; give lora_r: %" PRId64
		             ", and leave use_peft: false out",
		             checkpoint, then.r);
	else if (then.r != now->r)
		rc = rh_fail(-EINVAL, "resume_from_checkpoint: %s holds an adapter of another rank than %" PRId64 "; give lora_r: %" PRId64,
		             checkpoint, now->r, then.r);
	else if (then.use_dora != now->use_dora)
		rc = rh_fail(-EINVAL, "resume_from_checkpoint: %s holds an adapter %s DoRA's magnitudes; give use_dora: %s", checkpoint,
		             then.use_dora ? "with" : "without", then.use_dora ? "true" : "false");
	else if (!has_same_targets(&then, now))
		rc = fail_targets(checkpoint, &then);
	rh_peft_config_free(&then);
	return rc;
}

int resumed_check(const struct training *run, const char *checkpoint)
{
	int rc = check_base(run, checkpoint);
	return rc ? rc : check_adapter(run, checkpoint);
}

/* A resumed run shuffles the rows there are now: with others, it does not go on as it would have. */
void resumed_tell_data(const struct training *run, const char *checkpoint)
{
	const struct rh_run_state *then = &run->state;
	if (then->data_rows && (then->data_rows != run->data.train.rows || then->data_tokens != run->data.train.tokens))
		rh_note("%s was trained on %" PRId64 " rows of %" PRId64 " tokens, this run has %" PRId64 " of %" PRId64
		        ": it goes on with other data, in another order",
		        checkpoint, then->data_rows, then->data_tokens, run->data.train.rows, run->data.train.tokens);
}
