/* `roundhouse eval`: the losses and accuracies of a model on rows. */
#include "cli/verbs.h"
#include "core/json.h"
#include "core/log.h"
#include "session/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static int print(const struct rh_config *config, const struct rh_evaluation *eval)
{
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
	if (!rc) {
		choices = rh_choices_find(&dataset);
		rc = rh_evaluate_shape(&dataset, config->per_device_eval_batch_size, &choices, &work.infer);
	}
	int devices = rc ? rc : rh_devices_count(config->device);
	if (devices < 0)
		rc = devices;
	if (!rc) {
		work.infer_micro_batches = rh_evaluate_micro_batches(dataset.rows, config->per_device_eval_batch_size, devices);
		work.data_bytes = rh_dataset_bytes(&dataset) + rh_micro_shape_pixel_bytes(&work.infer) * work.infer_micro_batches;
		rc = rh_session_start(&session, &work);
	}
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
