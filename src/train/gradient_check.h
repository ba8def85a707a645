/* `verify`: the gradients of one step of a run, as it is configured (devices, tiers, rounds, chunks, schedule), beside those of the same
 * step on one device that holds all. */
#ifndef RH_TRAIN_GRADIENT_CHECK_H
#define RH_TRAIN_GRADIENT_CHECK_H

#include "config/config.h"

enum rh_gradient_verdict {
	RH_GRADIENT_EQUAL,      /* in each bit */
	RH_GRADIENT_CLOSE,      /* within `tolerance`, where bits may differ */
	RH_GRADIENT_LOST,       /* all zero, where the other is not */
	RH_GRADIENT_NOT_FINITE, /* in either */
	RH_GRADIENT_DIFFERS
};
const char *rh_gradient_verdict_name(enum rh_gradient_verdict verdict);

struct rh_gradient_of {
	char *name; /* of the tensor, owned */
	int64_t elements;
	enum rh_gradient_verdict verdict;
	double difference; /* |a-b| / |b|, as vectors: b is the reference's */
	double norm, reference_norm;
};

struct rh_gradient_check {
	struct rh_gradient_of *tensor; /* each that is trained */
	int64_t tensors, bad;          /* bad: lost, not finite or different */
	int64_t layers, all_layers;    /* transformer layers that were checked: the first ones, as many as fit; and all */
	int64_t micro_batches, tokens; /* of the step */
	int is_bitwise;                /* the run promises the same bits */
	double tolerance;              /* where it does not */
	double loss, reference_loss;
	char ways[2][160]; /* how the run computed, and the reference */
};

/* Writes nothing but to NVMe. RH_DROP_GRADIENT=NAME in the environment has the run lose the gradients of the block with this tensor, for
 * tests. Free *out in any case. Errors are those of a run, and -EINVAL for what has no reference: updates without a flush. */
int rh_gradient_check(const struct rh_config *config, struct rh_gradient_check *out) RH_MUST;
void rh_gradient_check_free(struct rh_gradient_check *check);

#endif
