/* A case of PREFERENCE: documents of random lengths, of which some have head rows of their prompts too. */
#ifndef RH_TESTS_DEVICE_PREFERENCE_CASE_H
#define RH_TESTS_DEVICE_PREFERENCE_CASE_H

#include "op_case.h"

/* One loss, or with `more` also the cross-entropy of the chosen answers. */
static inline struct rh_preference preference_of(enum rh_preference_loss type, int more)
{
	struct rh_preference is = {.beta = 0.3F,
	                           .label_smoothing = 0.1F,
	                           .simpo_gamma = 0.5F,
	                           .cpo_alpha = 0.7F,
	                           .desirable_weight = 1.5F,
	                           .undesirable_weight = 0.75F,
	                           .answers = type == RH_PREFERENCE_APO_ZERO_UNPAIRED ? 1 : 2};
	is.weight[type] = 0.8F;
	if (more && type < RH_PREFERENCE_SFT)
		is.weight[RH_PREFERENCE_SFT] = 0.25F;
	return is;
}

static inline struct op_case preference_case(const struct case_shape *s, enum rh_preference_loss type, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_PREFERENCE, .op.preference = preference_of(type, s->index % 2)};
	int64_t documents = 2 * case_between(seed, 1, 4), rows = 0, first[8], answer[8];
	for (int64_t d = 0; d < documents; d++) {
		first[d] = rows;
		answer[d] = rows += type == RH_PREFERENCE_ORPO && d % 2 == 0 ? case_between(seed, 0, 20) : 0;
		rows += case_between(seed, 1, s->rows + 1);
	}
	struct rh_view loss = case_operand(&c, RH_PREFERENCE_OP_LOSS, RH_F32, rows, 1, 0, FILL_RANDOM);
	for (int64_t i = 0; i < rows; i++) /* cross-entropies */
		case_put(loss, i, 0, 0.01 + fabs(case_get(loss, i, 0)));
	struct rh_view span = case_operand(&c, RH_PREFERENCE_OP_SPAN, RH_I32, documents, RH_SPANS, 0, FILL_NONE);
	struct rh_view reference = case_operand(&c, RH_PREFERENCE_OP_REFERENCE, RH_F32, documents, 1, 0, FILL_RANDOM);
	for (int64_t d = 0; d < documents; d++) {
		int64_t end = d + 1 < documents ? first[d + 1] : rows;
		int is_kto = type == RH_PREFERENCE_KTO, is_chosen = type < RH_PREFERENCE_KTO ? d % 2 == 0 : case_between(seed, 0, 1) != 0;
		case_put(span, d, RH_SPAN_FIRST, (double)first[d]);
		case_put(span, d, RH_SPAN_ANSWER, (double)answer[d]);
		case_put(span, d, RH_SPAN_TOKENS, (double)(end - answer[d] + (d % 3 == 0)));
		case_put(span, d, RH_SPAN_ROLE, is_kto && d % 2 ? RH_ROLE_MISMATCHED : is_chosen ? RH_ROLE_CHOSEN : RH_ROLE_REJECTED);
		double sum = 0;
		for (int64_t i = answer[d]; i < end; i++)
			sum += case_get(loss, i, 0);
		case_put(reference, d, 0, 2 * case_get(reference, d, 0) - sum); /* near what the model has */
	}
	case_operand(&c, RH_PREFERENCE_OP_SUM, RH_F32, documents, 2, 0, FILL_POISON);
	case_operand(&c, RH_PREFERENCE_OP_MIX, RH_F32, rows, 1, 0, FILL_POISON);
	if (s->index % 3)
		case_operand(&c, RH_PREFERENCE_OP_DH, s->dtype, rows, s->cols, s->pad, FILL_RANDOM);
	/* a sum in another order may round to the neighbour, a part in 2^24 of up to some hundreds */
	c.tolerance[RH_PREFERENCE_OP_SUM] = 0x1p-14;
	c.tolerance[RH_PREFERENCE_OP_MIX] = 0x1p-14;
	c.tolerance[RH_PREFERENCE_OP_DH] = s->dtype == RH_BF16 ? 0x1p-6 : 0x1p-13;
	return c;
}

#endif
