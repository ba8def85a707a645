/* `roundhouse eval`: the losses and accuracies of a model on rows. */
#include "ckpt/prompts.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/log.h"
#include "session/evaluate.h"
#include "session/preference.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* Losses over preferences, under TRL's names. */
static int print_judged(const struct rh_config *config, const struct rh_evaluation *eval)
{
	json_t *json = json_pack("{s:o, s:I, s:I, s:o}", "eval_loss", rh_json_number(eval->loss), "eval_rows", (json_int_t)eval->rows,
	                         "eval_tokens", (json_int_t)eval->tokens, "seconds", rh_json_number(eval->seconds));
	if (!config->json)
		printf("loss %.6f over %lld rows\n", eval->loss, (long long)eval->rows);
	for (enum rh_figure f = 0; f < RH_FIGURES; f++) {
		char key[64];
		snprintf(key, sizeof key, "eval_%s", rh_figure_name(f));
		if (eval->figures.count[f] && config->json)
			json_object_set_new(json, key, rh_json_number(rh_figure_of(&eval->figures, f)));
		else if (eval->figures.count[f])
			printf("%s %.6f\n", rh_figure_name(f), rh_figure_of(&eval->figures, f));
	}
	if (config->json)
		return verb_print_json(json);
	json_decref(json);
	return 0;
}

static int print(const struct rh_config *config, const struct rh_evaluation *eval)
{
	if (eval->is_judged)
		return print_judged(config, eval);
	if (config->json) {
		json_t *accuracy = rh_json_number(eval->choice_accuracy < 0 ? NAN : eval->choice_accuracy);
		json_t *majority = rh_json_number(eval->majority < 0 ? NAN : eval->majority);
		double rate = eval->seconds > 0 ? (double)eval->tokens / eval->seconds : 0;
		json_t *perplexity = rh_json_number(eval->classifies ? NAN : exp(eval->loss));
		json_t *f1 = rh_json_number(eval->classifies ? eval->f1 : NAN);
		json_t *matthews = rh_json_number(eval->classifies ? eval->matthews : NAN);
		return verb_print_json(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o}", "eval_perplexity",
		                                 perplexity, "eval_f1", f1, "eval_matthews_correlation", matthews, "eval_loss",
		                                 rh_json_number(eval->loss), "eval_token_accuracy", rh_json_number(eval->token_accuracy),
		                                 "eval_accuracy", accuracy, "majority", majority, "eval_rows", (json_int_t)eval->rows,
		                                 "eval_tokens", (json_int_t)eval->tokens, "trained_tokens", (json_int_t)eval->trained,
		                                 "seconds", rh_json_number(eval->seconds), "tokens_per_second", rh_json_number(rate)));
	}
	if (eval->classifies) {
		printf("loss %.6f over %lld rows\naccuracy %.4f (always giving the commonest label: %.4f)\nF1 %.4f\nMatthews correlation "
		       "%.4f\n",
		       eval->loss, (long long)eval->rows, eval->choice_accuracy, eval->majority, eval->f1, eval->matthews);
		return 0;
	}
	printf("loss %.6f over %lld trained tokens of %lld rows (weighted by token); perplexity %.4f\n", eval->loss,
	       (long long)eval->trained, (long long)eval->rows, exp(eval->loss));
	printf("token accuracy %.4f\n", eval->token_accuracy);
	if (eval->choice_accuracy >= 0)
		printf("accuracy %.4f (always giving the commonest answer: %.4f)\n", eval->choice_accuracy, eval->majority);
	return 0;
}

/* What a forward pass over the rows takes. */
static int workload_of(const struct rh_config *config, const struct rh_dataset *dataset, const struct rh_choices *choices,
                       struct rh_workload *out)
{
	int64_t each = config->per_device_eval_batch_size;
	int devices = rh_devices_count(config->device), rc = devices < 0 ? devices : 0;
	*out = (struct rh_workload){0};
	if (!rc)
		rc = rh_evaluate_shape(dataset, each, choices, &out->infer);
	if (rc)
		return rc;
	out->infer_micro_batches = rh_evaluate_micro_batches(dataset->rows, each, devices);
	out->data_bytes = rh_dataset_bytes(dataset) + rh_micro_shape_pixel_bytes(&out->infer) * out->infer_micro_batches;
	return 0;
}

/* Another model may lie there by now. */
static int check_reference(const struct rh_session *session, const struct rh_dataset *dataset, const char *dir)
{
	const struct rh_model_config *model = session->model_config;
	int32_t highest = 0;
	for (int64_t i = 0; i < dataset->tokens; i++)
		highest = dataset->ids[i] > highest ? dataset->ids[i] : highest;
	if (model->task == RH_TASK_CAUSAL_LM && highest < model->vocab_size)
		return rh_session_check_length(session);
	return rh_fail(-EINVAL, "%s: is the reference that %s names, but no longer the model of that run: %s; put the run's model there",
	               session->config->model_name_or_path, dir,
	               model->task == RH_TASK_CAUSAL_LM ? "it has fewer tokens" : "it does not continue texts");
}

/* Gives the rows the log-probabilities of the model that the run began with, which its output names. */
static int refer(const struct rh_config *config, struct rh_dataset *dataset)
{
	const char *dir = config->adapter_name_or_path ? config->adapter_name_or_path : config->model_name_or_path;
	struct rh_config before = *config; /* its strings are borrowed */
	struct rh_session session;
	struct rh_workload work;
	char *model, *adapter;
	int rc = rh_prompts_reference(dir, &model, &adapter);
	if (!rc && !model)
		rc = rh_fail(
		        -EINVAL,
		        "loss_type: compares with a reference, and %s does not say which: it is not what a run with such a loss wrote; "
		        "leave loss_type out",
		        dir);
	before.model_name_or_path = model;
	before.adapter_name_or_path = adapter;
	before.use_lora = adapter != NULL;
	if (!rc)
		rh_note("reference: %s%s%s, as %s says", model, adapter ? " with " : "", adapter ? adapter : "", dir);
	if (!rc)
		rc = rh_session_open(&before, RH_SESSION_INFERS, &session);
	if (!rc) {
		rc = check_reference(&session, dataset, dir);
		if (!rc)
			rc = workload_of(&before, dataset, NULL, &work);
		if (!rc)
			rc = rh_session_start(&session, &work);
		if (!rc)
			rc = rh_reference_pass(&session, dataset, config->per_device_eval_batch_size, NULL);
		rh_session_close(&session);
	}
	rh_free(model);
	rh_free(adapter);
	return rc;
}

int verb_eval(const struct rh_config *config)
{
	struct rh_session session;
	struct rh_dataset dataset = {0};
	struct rh_objective objective;
	struct rh_choices choices;
	struct rh_workload work = {0};
	struct rh_progress *progress = NULL;
	struct rh_evaluation eval;
	int rc = rh_session_open(config, RH_SESSION_INFERS, &session);
	if (rc)
		return rc;
	rc = rh_session_check_length(&session);
	if (!rc)
		rc = rh_session_load_tokenizer(&session);
	if (!rc)
		objective = rh_session_objective(&session);
	if (!rc)
		rc = rh_evaluate_load(config, &objective, session.tokenizer, &dataset);
	if (!rc)
		rc = rh_dataset_pair(&dataset, config->per_device_train_batch_size, config->max_length);
	if (!rc && rh_preference_refers(&config->preference))
		rc = refer(config, &dataset);
	if (!rc) {
		choices = rh_choices_find(&dataset);
		rc = workload_of(config, &dataset, &choices, &work);
	}
	if (!rc)
		rc = rh_session_start(&session, &work);
	if (!rc)
		rc = rh_progress_open(STDERR_FILENO, rh_progress_style_of(STDERR_FILENO), 0, &progress);
	if (!rc)
		rc = rh_evaluate(&session, &dataset, &choices, progress, &eval);
	rh_progress_close(progress);
	if (!rc)
		rc = print(config, &eval);
	rh_dataset_free(&dataset);
	rh_session_close(&session);
	return rc;
}
