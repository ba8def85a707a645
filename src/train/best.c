/* The best evaluation: which it is, that its checkpoint stays, and what follows from there being none better for long. As in
 * transformers: a metric is better or not; the threshold is early stopping's alone. */
#include "train/training.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"

#include <inttypes.h>
#include <math.h>

static const char *const metric_names[] = {"eval_loss", "eval_token_accuracy", "eval_accuracy", "eval_rewards/accuracies",
                                           "eval_rewards/margins"};

static double metric_of(const struct training *run, const struct rh_evaluation *eval)
{
	switch (run->config->metric_for_best_model) {
	case RH_METRIC_TOKEN_ACCURACY:
		return eval->token_accuracy;
	case RH_METRIC_ACCURACY:
		return eval->choice_accuracy;
	case RH_METRIC_REWARDS_ACCURACIES:
		return rh_figure_of(&eval->figures, RH_FIGURE_REWARDS_ACCURACIES);
	case RH_METRIC_REWARDS_MARGINS:
		return rh_figure_of(&eval->figures, RH_FIGURE_REWARDS_MARGINS);
	default:
		return eval->loss;
	}
}

static int greater_is_better(const struct rh_config *config)
{
	return config->greater_is_better == RH_UNSET ? config->metric_for_best_model != RH_METRIC_LOSS
	                                             : config->greater_is_better == RH_YES;
}

int best_check(const struct training *run)
{
	const struct rh_config *config = run->config;
	int judges = config->load_best_model_at_end || config->early_stopping_patience;
	if (judges && !run->course.eval_every)
		return rh_fail(-EINVAL,
		               "%s: there are no evaluations; set eval_strategy (steps or epoch), and validation_file or eval_split",
		               config->load_best_model_at_end ? "load_best_model_at_end" : "early_stopping_patience");
	if (config->load_best_model_at_end && (!run->course.save_every || run->course.save_every % run->course.eval_every))
		return rh_fail(-EINVAL,
		               "load_best_model_at_end: checkpoints come every %" PRId64 " steps and evaluations every %" PRId64
		               "; make save_steps a multiple of eval_steps, by the same strategy",
		               run->course.save_every, run->course.eval_every);
	if (judges && config->metric_for_best_model == RH_METRIC_ACCURACY && run->data.choices.count == 0)
		return rh_fail(-EINVAL,
		               "metric_for_best_model: eval_accuracy is of rows that choose between few answers, and these do not; "
		               "take eval_token_accuracy or eval_loss");
	int wants_rewards = config->metric_for_best_model == RH_METRIC_REWARDS_MARGINS,
	    wants_right = config->metric_for_best_model == RH_METRIC_REWARDS_ACCURACIES;
	int has_right = rh_preference_is_paired(&config->preference);
	if (judges && ((wants_rewards && !config->preference.answers) || (wants_right && !has_right)))
		return rh_fail(-EINVAL, "metric_for_best_model: %s is of losses over preferences%s; take eval_loss",
		               metric_names[config->metric_for_best_model], wants_right ? " of pairs" : "");
	return 0;
}

/* An improvement counts for patience only beyond the threshold. */
static void count_patience(struct training *run, double metric, int better)
{
	const struct rh_config *config = run->config;
	struct rh_trainer_state *trainer = &run->trainer;
	if (!config->early_stopping_patience)
		return;
	int enough = better && (!trainer->best_step || fabs(metric - trainer->best_metric) > config->early_stopping_threshold);
	trainer->patience_used = enough ? 0 : trainer->patience_used + 1;
	if (trainer->patience_used < config->early_stopping_patience || run->state.step == run->data.steps)
		return;
	rh_note("stopped early after step %" PRId64 ": %" PRId64 " evaluations in a row were no better than %s %.6f of step %" PRId64,
	        run->state.step, trainer->patience_used, metric_names[config->metric_for_best_model], trainer->best_metric,
	        trainer->best_step);
	run->stopped_early = 1;
}

int best_judge(struct training *run, const struct rh_evaluation *eval, int saves)
{
	struct rh_trainer_state *trainer = &run->trainer;
	double metric = metric_of(run, eval);
	int better = isfinite(metric) && (!trainer->best_step ||
	                                  (greater_is_better(run->config) ? metric > trainer->best_metric : metric < trainer->best_metric));
	count_patience(run, metric, better);
	if (!better)
		return 0;
	trainer->best_step = run->state.step;
	trainer->best_metric = metric;
	if (!run->config->load_best_model_at_end || !saves)
		return 0;
	int rc = saving_collect(run, RH_CHECKPOINT_WAIT); /* the one before is there, or taken back */
	char *path = rc ? NULL : rh_checkpoint_path(run->config->output_dir, run->state.step);
	if (!path)
		return rc ? rc : -ENOMEM;
	rh_free(run->best_before);
	run->best_before = trainer->best_checkpoint;
	trainer->best_checkpoint = path;
	return 0;
}

void best_take_back(struct training *run, int64_t step)
{
	struct rh_trainer_state *trainer = &run->trainer;
	if (rh_checkpoint_step(trainer->best_checkpoint) != step)
		return;
	rh_free(trainer->best_checkpoint);
	trainer->best_checkpoint = run->best_before;
	run->best_before = NULL;
}

/* output_dir may have been moved since, or the checkpoint removed. */
int best_find(struct training *run)
{
	struct rh_trainer_state *trainer = &run->trainer;
	if (!trainer->best_checkpoint)
		return 0;
	char *path = rh_checkpoint_path(run->config->output_dir, rh_checkpoint_step(trainer->best_checkpoint));
	if (!path)
		return -ENOMEM;
	if (!rh_dir_exists(path) && rh_dir_exists(trainer->best_checkpoint)) { /* of another output_dir */
		rh_free(path);
		return 0;
	}
	if (!rh_dir_exists(path)) {
		if (run->config->load_best_model_at_end)
			rh_note("warning: load_best_model_at_end: the best checkpoint so far, %s, is not there", trainer->best_checkpoint);
		rh_free(path);
		path = NULL;
	}
	rh_free(trainer->best_checkpoint);
	trainer->best_checkpoint = path;
	return 0;
}

int best_load(struct training *run)
{
	const struct rh_trainer_state *trainer = &run->trainer;
	const char *metric = metric_names[run->config->metric_for_best_model];
	if (!run->config->load_best_model_at_end || !trainer->best_step)
		return 0;
	if (!trainer->best_checkpoint) {
		rh_note("warning: the best %s, %.6f at step %" PRId64 ", has no checkpoint; the last weights are the result", metric,
		        trainer->best_metric, trainer->best_step);
		return 0;
	}
	int64_t saved = rh_checkpoint_step(trainer->best_checkpoint);
	if (saved != trainer->best_step)
		rh_note("warning: the best %s, %.6f at step %" PRId64
		        ", has no checkpoint; the result is the best one before it, of step %" PRId64,
		        metric, trainer->best_metric, trainer->best_step, saved);
	if (saved == run->state.step)
		return 0;
	int rc = rh_checkpoint_load_weights(trainer->best_checkpoint, &run->session);
	if (rc)
		return rh_fail(rc,
		               "%s: load_best_model_at_end cannot load it; false, with resume_from_checkpoint: true, takes the last one",
		               rh_error(rc));
	if (saved == trainer->best_step)
		rh_note("the result is %s, whose %s was the best: %.6f", trainer->best_checkpoint, metric, trainer->best_metric);
	return 0;
}
