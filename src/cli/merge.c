/* `roundhouse merge`: an adapter into its base. `roundhouse export`: a model, or an adapter alone, as a GGUF file. */
#include "ckpt/merge.h"

#include "ckpt/adapter_gguf.h"
#include "ckpt/mixture.h"
#include "cli/modelfile.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "core/log.h"
#include "machine/machine.h"
#include "session/session.h"

#include <stdio.h>
#include <string.h>

/* In the order of outtype's words. */
static const enum rh_dtype types[] = {RH_F32, RH_BF16, RH_F16, RH_Q8_0, RH_Q4_0, RH_Q4_K, RH_Q5_K, RH_Q6_K};

static int check(const struct rh_config *config)
{
	if (!config->outfile && !config->output_dir)
		return rh_fail(-EINVAL, "output_dir or outfile: say where the model goes: a directory, or a .gguf file");
	if (config->outfile)
		return verb_check_output(config, "outfile", config->outfile, OUTPUT_GGUF);
	int rc = verb_check_output(config, "output_dir", config->output_dir, OUTPUT_MODEL);
	if (rc)
		return rc;
	if (config->outtype >= 0 && rh_dtype_block(types[config->outtype]) > 1)
		return rh_fail(-EINVAL, "outtype: %s is for GGUF files; give outfile: NAME.gguf",
		               rh_gguf_file_type_name(types[config->outtype]));
	return 0;
}

static int tell(const struct rh_config *config, const char *place, const struct rh_merged *merged)
{
	int all_f16 = merged->as_f16 && merged->as_f16 == merged->matrices;
	const char *wanted = rh_gguf_file_type_name(merged->dtype), *type = all_f16 ? rh_dtype_name(RH_F16) : wanted;
	char others[192] = "";
	if (all_f16)
		snprintf(others, sizeof others, ", as none has rows of a multiple of 32 values, which %s takes", wanted);
	else if (merged->as_f16)
		snprintf(others, sizeof others, ", but for %lld in F16, whose rows are no multiple of the 32 values that %s takes",
		         (long long)merged->as_f16, wanted);
	if (merged->as_mxfp4)
		snprintf(others + strlen(others), sizeof others - strlen(others), ", but for %lld of experts, which stay in MXFP4",
		         (long long)merged->as_mxfp4);
	rh_note("written to %s: %lld tensors, matrices in %s%s%s", place, (long long)merged->tensors, type, others,
	        config->outtype >= 0       ? ""
	        : merged->dtype == RH_BF16 ? " (outtype says otherwise)"
	                                   : ", as the model has them (outtype says otherwise)");
	return config->json ? verb_print_json(json_pack("{s:s, s:I, s:s, s:I}", "written", place, "tensors", (json_int_t)merged->tensors,
	                                                "type", type, "in_f16_instead", (json_int_t)merged->as_f16))
	                    : 0;
}

static int write_adapter(const struct rh_config *config)
{
	enum rh_dtype dtype = types[config->outtype]; /* unset, it is F32 here */
	struct rh_adapter_gguf wanted = {
	        .model = config->model_name_or_path, .adapter = config->adapter_name_or_path, .path = config->outfile, .dtype = dtype};
	struct rh_merged merged;
	if (!config->outfile)
		return rh_fail(-EINVAL, "outfile: an adapter is exported to a .gguf file; name it (merge writes a directory)");
	if (rh_is_k_mixture(dtype))
		return rh_fail(-EINVAL,
		               "outtype: %s is a mixture of types for a whole model; an adapter alone is f32, bf16, f16, q8_0 or q4_0",
		               rh_gguf_file_type_name(dtype));
	int rc = check(config);
	if (!rc)
		rc = rh_adapter_gguf_write(&wanted, &merged);
	return rc ? rc : tell(config, config->outfile, &merged);
}

static int write_model(const struct rh_config *config)
{
	struct rh_merge merge = {.model = config->model_name_or_path,
	                         .adapter = config->adapter_name_or_path,
	                         .dir = config->outfile ? NULL : config->output_dir,
	                         .gguf = config->outfile,
	                         .task = config->task,
	                         .num_labels = config->num_labels,
	                         .dtype = config->outtype < 0 ? RH_BF16 : types[config->outtype],
	                         .threads = rh_machine_cores(),
	                         .as_model = config->outtype < 0};
	json_t *scaling = NULL;
	struct rh_merged merged = {0};
	int rc = check(config);
	if (!rc)
		rc = rh_session_rope_scaling(config, &scaling);
	merge.rope_scaling = scaling;
	if (!rc)
		rc = rh_merge(&merge, &merged);
	json_decref(scaling);
	if (!rc && config->outfile)
		rc = verb_write_modelfile(config->outfile, config->force);
	return rc ? rc : tell(config, config->outfile ? config->outfile : config->output_dir, &merged);
}

int verb_merge(const struct rh_config *config)
{
	return write_model(config);
}

int verb_export(const struct rh_config *config)
{
	return config->adapter_name_or_path ? write_adapter(config) : write_model(config);
}
