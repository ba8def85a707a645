/* Streams through memory, judged by what an in-place pass over the same arrays reaches (bench/adamw.c). AdamW moves 28 bytes an element in
 * fp32 (16 read, 12 written), 26 in the split layout (14 and 12), 28 in the plain one (14 and 14). */
#include "offload/simd/checksum.h"
#include "offload/simd/simd.h"

/* bitsandbytes' 32-bit Lion (Chen et al., "Symbolic discovery of optimization algorithms", algorithm 2). */
SIMD_INLINE float lion(const struct optimizer_terms *t, float weight, float gradient, float *first)
{
	float g = gradient * t->adamw.scale;
	float toward = fmaf(t->one_minus_beta1, g, *first * t->beta1);
	float sign = (toward > 0 ? 1.0f : 0.0f) - (toward < 0 ? 1.0f : 0.0f);
	*first = fmaf(t->adamw.one_minus_beta2, g, *first * t->adamw.beta2);
	return fmaf(weight, t->adamw.keep, t->adamw.minus_step * sign);
}

/* torch.optim.SGD, dampening 0. A zero moment makes the first step's buffer the gradient itself, as torch has it. */
SIMD_INLINE float sgd(const struct optimizer_terms *t, float weight, float gradient)
{
	return fmaf(t->decay, weight, gradient * t->adamw.scale);
}

/* AdamW's two passes: the weights, from moments that are made and not kept (14 bytes read an element and 4 written in the split layout);
 * the moments, made again and kept (10 and 8). */
enum { ADAMW_WEIGHTS = OPTIMIZER_STEPS, ADAMW_MOMENTS };

/* One piece of a pass; inlined where the count is a constant, so that only tails run element by element. */
SIMD_INLINE uint32_t piece(const int step, const int form, const struct optimizer_terms *t, const struct optimizer_span *s, int64_t at,
                           int64_t count)
{
	uint32_t bad = 0;
	float *first = s->moment[0], *second = s->moment[1];
#pragma GCC ivdep
	for (int64_t i = at; i < at + count; i++) {
		float gradient = gradient_at(form == FORM_WIDE, s->gradient, i);
		if (step == ADAMW_MOMENTS) {
			adamw_moments(&t->adamw, gradient, &first[i], &second[i]);
			continue;
		}
		float weight = weight_at(form, s, i);
		if (step == STEP_ADAMW) {
			weight = adamw(&t->adamw, weight, gradient, &first[i], &second[i]);
		} else if (step == ADAMW_WEIGHTS) {
			float m = first[i], v = second[i];
			weight = adamw(&t->adamw, weight, gradient, &m, &v);
		} else if (step == STEP_LION) {
			weight = lion(t, weight, gradient, &first[i]);
		} else {
			float g = sgd(t, weight, gradient);
			if (step == STEP_MOMENTUM)
				g = first[i] = fmaf(t->momentum, first[i], g);
			weight = fmaf(t->adamw.minus_step, g, weight);
		}
		weight_to(form, s, i, rh_f32_bits(weight));
		bad |= not_finite(rh_f32_bits(weight));
	}
	return bad;
}

SIMD_INLINE int update(const int step, const int form, const struct optimizer_terms *terms, const struct optimizer_span *span,
                       int64_t count)
{
	const struct optimizer_terms t = *terms;
	const struct optimizer_span s = *span;
	uint32_t bad = 0;
	int64_t i = 0;
	for (; i + PIECE <= count; i += PIECE) {
		if (step != ADAMW_MOMENTS)
			ask_weights(form, &s, i, PIECE);
		else
			ask((const char *)s.gradient + i * (form == FORM_WIDE ? 4 : 2), PIECE * (form == FORM_WIDE ? 4 : 2));
		if (step != STEP_SGD)
			ask(s.moment[0] + i, PIECE * 4);
		if (step == STEP_ADAMW || step == ADAMW_WEIGHTS || step == ADAMW_MOMENTS)
			ask(s.moment[1] + i, PIECE * 4);
		bad |= piece(step, form, &t, &s, i, PIECE);
	}
	return (int)(bad | piece(step, form, &t, &s, i, count - i));
}

#define UPDATE(name, step, form)                                                                                                           \
	static int name(const struct optimizer_terms *terms, const struct optimizer_span *span, int64_t count)                             \
	{                                                                                                                                  \
		return update(step, form, terms, span, count);                                                                             \
	}
#define UPDATES(name, step)                                                                                                                \
	UPDATE(name##_wide, step, FORM_WIDE)                                                                                               \
	UPDATE(name##_split, step, FORM_SPLIT)                                                                                             \
	UPDATE(name##_plain, step, FORM_PLAIN)
#define FORMS_OF(name)                                                                                                                     \
	{                                                                                                                                  \
		[FORM_WIDE] = name##_wide, [FORM_SPLIT] = name##_split, [FORM_PLAIN] = name##_plain                                        \
	}

UPDATES(weights_alone, ADAMW_WEIGHTS)
UPDATES(moments_alone, ADAMW_MOMENTS)
UPDATES(update_adamw, STEP_ADAMW)
UPDATES(update_lion, STEP_LION)
UPDATES(update_sgd, STEP_SGD)
UPDATES(update_momentum, STEP_MOMENTUM)

#define STRING_(a) #a
#define STRING(a)  STRING_(a)

const struct optimizer_kernels SIMD(optimizer_kernels) = {
        .name = STRING(RH_ISA),
        .update = {[STEP_ADAMW] = FORMS_OF(update_adamw),
                   [STEP_ADAMW8] = {[FORM_SPLIT] = SIMD(adamw8)},
                   [STEP_LION] = FORMS_OF(update_lion),
                   [STEP_SGD] = FORMS_OF(update_sgd),
                   [STEP_MOMENTUM] = FORMS_OF(update_momentum)},
        .weights = FORMS_OF(weights_alone),
        .moments = FORMS_OF(moments_alone),
        .columns = SIMD(factor_columns),
        .weighted = SIMD(factor_weighted),
        .apply = {[FORM_WIDE] = SIMD(factor_apply_wide), [FORM_SPLIT] = SIMD(factor_apply_split), [FORM_PLAIN] = SIMD(factor_apply_plain)},
        .squares_f32 = SIMD(squares_f32),
        .squares_bf16 = SIMD(squares_bf16),
        .add_f32 = SIMD(add_f32),
        .add_bf16 = SIMD(add_bf16),
        .decode = SIMD(codes_decode),
        .encode = SIMD(codes_encode),
        .checksum = SIMD(checksum),
};
