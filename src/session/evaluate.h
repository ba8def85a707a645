/* Loss and accuracy on held-out rows. */
#ifndef RH_SESSION_EVALUATE_H
#define RH_SESSION_EVALUATE_H

#include "data/dataset.h"
#include "observe/progress.h"
#include "session/session.h"

/* A classification in disguise: the documents' answers are few and differ in their first token. So a document is scored by which of
 * these tokens is likeliest where its answer begins. */
enum { RH_CHOICES_MAX = 16 };
struct rh_choices {
	int32_t token[RH_CHOICES_MAX];
	int64_t documents[RH_CHOICES_MAX]; /* with that answer */
	int count;                         /* 0: the rows are no such thing */
};
/* A count above 0 needs at least two different answers, each at least twice on average, or a few texts would pass for classes; and no
 * document whose answer was cut. */
struct rh_choices rh_choices_find(const struct rh_dataset *dataset);

struct rh_evaluation {
	double loss;                      /* mean over trained tokens; over judged rows */
	int is_judged;                    /* rows say which answer is better, and the loss is over that */
	struct rh_figures figures;        /* of those */
	double token_accuracy;            /* share of trained tokens that are the likeliest */
	double choice_accuracy, majority; /* shares of documents; -1 where the rows are no choice. majority: of the commonest answer */
	double f1, matthews;              /* of a classification: F1 of label 1, of more than two labels their mean; and the correlation */
	int classifies;
	int64_t rows, tokens, trained;
	double seconds;
};

/* Loads the rows to evaluate: validation_file, never packed, so that rows keep their number and order; else the rows that eval_split
 * holds out of train_file. */
int rh_evaluate_load(const struct rh_config *config, const struct rh_objective *objective, const struct rh_tokenizer *tokenizer,
                     struct rh_dataset *out) RH_MUST;

/* Evaluates every row once, in file order, per_device_eval_batch_size rows a micro-batch; the session was started for such
 * micro-batches, and for `choices` (NULL: none). `progress` (NULL: none) is told how many rows are done. Of several boxes all call it and
 * get the result; only box 1 needs the rows, the others their number. */
int rh_evaluate(struct rh_session *session, const struct rh_dataset *dataset, const struct rh_choices *choices,
                struct rh_progress *progress, struct rh_evaluation *out) RH_MUST;

/* l of each judged document (logps: so many), by the model as it stands; `each` rows a micro-batch. */
int rh_evaluate_logps(struct rh_session *session, const struct rh_dataset *dataset, int64_t each, struct rh_progress *progress,
                      float *logps) RH_MUST;

/* The largest micro-batch of `each` rows, and how many go into one executor call. */
int rh_evaluate_shape(const struct rh_dataset *dataset, int64_t each, const struct rh_choices *choices,
                      struct rh_micro_shape *out) RH_MUST;
int64_t rh_evaluate_micro_batches(int64_t rows, int64_t each, int devices);

#endif
