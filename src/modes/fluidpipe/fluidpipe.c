#include "modes/fluidpipe/fluidpipe.h"

#include "checkpoint/checkpoint.h"
#include "core/minmax.h"
#include "link/ahead.h"
#include "modes/boxes/box_output.h"
#include "modes/fluidpipe/fluidpipe_logits.h"
#include "modes/fluidpipe/idle_steps.h"

static int check_cut(const struct rh_session *session, int cut)
{
	int layers = session->model->layers;
	if (cut >= 2 && cut <= layers - 2)
		return 0;
	return rh_fail(-EINVAL, "box_cuts: %d leaves a box of mode fluidpipe without a transformer layer; choose 2 to %d", cut, layers - 2);
}

/* An adapter that names modules of box 1 alone leaves box 2 nothing to train. (One of box 2 alone is allowed: box 1 is frozen then.) */
static int check_upper_trains(const struct rh_session *session, int cut)
{
	const struct rh_model *model = session->model;
	for (int l = cut; l < model->layers; l++)
		for (int b = 0; b < RH_LAYER_BLOCKS; b++)
			if (model->layer[l].block[b] >= 0 && model->block[model->layer[l].block[b]].trainable)
				return 0;
	return rh_fail(-EINVAL,
	               "lora_target_modules: box 2 of mode fluidpipe, layers %d to %d, would train nothing: name modules of these layers, "
	               "too, or give box 2 lower ones (box_cuts)",
	               cut, model->layers - 1);
}

/* The model anew, of another configuration. */
static int recreate(struct rh_session *session, const struct rh_model_config *config)
{
	struct rh_model *before = session->model, *made = NULL;
	int rc = rh_model_create(config, before->dtype, session->lora ? &session->adapter.lora : NULL, &made);
	if (rc)
		return rc;
	made->multiply = before->multiply;
	made->chunk = before->chunk;
	made->drop = before->drop;
	made->distillation.temperature = (float)session->config->fluidpipe_temperature;
	made->distillation.top = session->config->fluidpipe_top_k;
	made->distillation.divergence = session->config->fluidpipe_kl == RH_KL_REVERSE ? RH_DIVERGENCE_REVERSE : RH_DIVERGENCE_FORWARD;
	rh_session_pack(session, made);
	rh_model_destroy(before);
	session->model = made;
	session->model_config = config;
	return 0;
}

/* Box 1's layer above the cut, which in the files is box 2's first. */
static int has_extra_layer(const struct rh_config *config)
{
	return config->fluidpipe_recipe % 2;
}

static int check_top(int64_t top, const struct rh_model_config *model)
{
	if (model->task != RH_TASK_CAUSAL_LM)
		return rh_fail(-EINVAL, "fluidpipe_top_k: %lld tokens of a causal language model, and this model is none: remove it",
		               (long long)top);
	if (top > model->vocab_size)
		return rh_fail(-EINVAL, "fluidpipe_top_k: %lld of a vocabulary of %lld tokens: write that or less", (long long)top,
		               (long long)model->vocab_size);
	if (model->vocab_size > RH_TOP_IDS)
		return rh_fail(-EINVAL, "fluidpipe_top_k: of a vocabulary of more than %d tokens: remove it", (int)RH_TOP_IDS);
	return 0;
}

/* All logits of a language model would outweigh the gradients that they replace; and which tokens are hidden changes with each epoch. */
int rh_fluidpipe_check(const struct rh_session *session)
{
	const struct rh_config *config = session->config;
	enum rh_task_kind task = session->model_config->task;
	if (config->mode != RH_MODE_FLUIDPIPE || !(rh_config_distils(config, 0) || rh_config_distils(config, 1)))
		return 0;
	if (session->model_config->logits_cap != 0)
		return rh_fail(
		        -EINVAL,
		        "mode: fluidpipe does not learn from logits that are capped (final_logit_softcapping) yet: write FP-ND or FP-ND-EL,"
		        " without alphas");
	if (config->fluidpipe_top_k)
		return check_top(config->fluidpipe_top_k, session->model_config);
	if (rh_task_classifies(task))
		return 0;
	if (task == RH_TASK_CAUSAL_LM)
		return rh_fail(-EINVAL, "fluidpipe_recipe: boxes distil a causal language model by its likeliest tokens: write "
		                        "fluidpipe_top_k, such as 32, or FP-ND or FP-ND-EL without alphas");
	return rh_fail(-EINVAL, "fluidpipe_recipe: boxes distil classifications and causal language models; of this one write FP-ND or "
	                        "FP-ND-EL, without alphas");
}

int64_t rh_fluidpipe_steps_ahead(const struct rh_config *config)
{
	enum { LEAST = 2 };
	int64_t messages = config->gradient_accumulation_steps + RH_FLUIDPIPE_STEP_MESSAGES;
	return rh_max(LEAST, (config->fluidpipe_ahead + messages - 1) / messages);
}

/* Box 2 keeps all activations of a step until box 1's logits of it arrive, which come after them. */
int64_t rh_fluidpipe_ahead(const struct rh_session *session)
{
	const struct rh_config *config = session->config;
	int64_t step = session->box.number && rh_config_distils(config, 1) ? config->gradient_accumulation_steps + 2 : 0;
	return rh_max(config->fluidpipe_ahead, step);
}

int64_t rh_fluidpipe_activation_bytes(const struct rh_model *model, int64_t tokens)
{
	struct rh_boundary_shape sent = rh_boundary_shape(model, rh_model_meeting(model), tokens);
	return rh_dtype_bytes(model->dtype, sent.rows * sent.cols);
}

int rh_fluidpipe_plan(const struct rh_session *session, int64_t samples, int64_t targets, struct rh_workload *work)
{
	const struct rh_model *model = session->model;
	work->data_bytes += rh_fluidpipe_ahead(session) * rh_fluidpipe_activation_bytes(model, work->train.tokens);
	fluidpipe_logits_plan(session, samples, targets, work);
	return idle_steps_are_wanted(session) ? idle_steps_plan(session, samples, work) : 0;
}

/* What box 1 sends is copied, so that its steps do not wait for box 2; and it may reach box 2 before box 2 asks for it. */
static int keep_ahead(struct rh_session *session)
{
	struct rh_link *outer, **link = session->box.number ? &session->box.link_below : &session->box.link_above;
	if (!*link)
		return 0;
	int rc = rh_ahead_open(*link, rh_fluidpipe_ahead(session), RH_BOX_MESSAGES, &outer);
	if (!rc)
		*link = outer;
	return rc;
}

int rh_fluidpipe_take_part(struct rh_session *session)
{
	int is_first = !session->box.number, cut = is_first ? session->box.hi : session->box.lo;
	struct rh_model_config *whole = &session->pipeline, *own = &session->stage;
	int rc = check_cut(session, cut);
	if (!rc)
		rc = check_upper_trains(session, cut);
	if (!rc)
		rc = rh_fluidpipe_check(session);
	if (rc)
		return rc;
	rc = rh_model_config_copy(session->model_config, whole);
	if (!rc)
		rc = rh_model_config_copy(session->model_config, own);
	if (rc)
		return rc;
	if (rh_model_ties(whole))
		whole->tie_word_embeddings = 0;
	if (is_first)
		rc = rh_model_config_keep_layers(own, cut - 1 + has_extra_layer(session->config));
	else
		own->tie_word_embeddings = whole->tie_word_embeddings;
	if (!rc)
		rc = recreate(session, own);
	if (rc)
		return rc;
	session->box.norm_share = 1;
	if (is_first)
		session->model->tap = cut;
	else
		rh_model_keep_above(session->model, cut);
	return keep_ahead(session);
}

int rh_fluidpipe_save(struct rh_session *session, const char *dir)
{
	struct rh_session part = *session; /* its first blocks are numbered as the session's */
	int rc = rh_model_create(&session->pipeline, session->model->dtype, session->lora ? &session->adapter.lora : NULL, &part.model);
	if (rc)
		return rc;
	rh_model_keep(part.model, session->box.lo, session->box.hi);
	part.model_config = &session->pipeline;
	rc = box_output_save(&part, dir);
	session->box = part.box; /* whose letters are other ones now */
	rh_model_destroy(part.model);
	return rc;
}
