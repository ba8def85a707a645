#include "core/form.h"

#include "core/arena.h"
#include "core/error.h"

enum { WORD = 4 };

#define ROW(name, ...) [RH_FORM_##name] = {__VA_ARGS__},
static const struct rh_form_traits traits[RH_FORMS] = {RH_FORM_LIST(ROW)};

const struct rh_form_traits *rh_form_traits(enum rh_form form)
{
	RH_ASSERT(form > RH_FORM_PLAIN && form < RH_FORMS);
	return &traits[form];
}

enum rh_form rh_form_of(enum rh_dtype element)
{
	for (int f = RH_FORM_PLAIN + 1; f < RH_FORMS; f++)
		if (traits[f].element == element && !traits[f].run)
			return (enum rh_form)f;
	return RH_FORM_PLAIN;
}

/* bitsandbytes' runs go on from row to row: rows that are no whole runs would share one. NVFP4's writers make whole runs alone. */
int rh_form_takes(enum rh_form form, int64_t cols)
{
	const struct rh_form_traits *of = rh_form_traits(form);
	int is_whole = of->element == RH_NF4 || of->element == RH_BNB_FP4 || form == RH_FORM_NVFP4;
	return cols % (is_whole ? of->run : rh_dtype_block(of->element)) == 0;
}

int64_t rh_form_runs(enum rh_form form, int64_t cols)
{
	int64_t run = rh_form_traits(form)->run;
	return run ? (cols + run - 1) / run : 0;
}

int64_t rh_form_scale_rows(enum rh_form form, int64_t rows)
{
	int64_t tall = rh_form_traits(form)->tall;
	return (rows + tall - 1) / tall;
}

int64_t rh_form_element_bytes(enum rh_form form, int64_t rows, int64_t cols)
{
	return rh_dtype_bytes(rh_form_traits(form)->element, rows * cols);
}

int64_t rh_form_scale_bytes(enum rh_form form, int64_t rows, int64_t cols)
{
	return rh_dtype_bytes(rh_form_traits(form)->scale, rh_form_scale_rows(form, rows) * rh_form_runs(form, cols));
}

int64_t rh_form_tail_bytes(enum rh_form form, int64_t rows, int64_t cols)
{
	enum rh_form_tail tail = rh_form_traits(form)->tail;
	if (tail != RH_TAIL_NESTED)
		return tail == RH_TAIL_FACTORS ? RH_FACTORS * (int64_t)sizeof(float) : 0;
	int64_t scales = rh_form_scale_rows(form, rows) * rh_form_runs(form, cols);
	return ((scales + RH_NESTED_RUN - 1) / RH_NESTED_RUN + RH_NESTED_MAP) * (int64_t)sizeof(float);
}

int64_t rh_form_scales_at(enum rh_form form, int64_t rows, int64_t cols)
{
	return rh_align_up(rh_form_element_bytes(form, rows, cols), WORD);
}

int64_t rh_form_tail_at(enum rh_form form, int64_t rows, int64_t cols)
{
	return rh_align_up(rh_form_scales_at(form, rows, cols) + rh_form_scale_bytes(form, rows, cols), WORD);
}

int64_t rh_form_bytes(enum rh_form form, int64_t rows, int64_t cols)
{
	if (!rh_form_traits(form)->run)
		return rh_form_element_bytes(form, rows, cols);
	return rh_form_tail_at(form, rows, cols) + rh_form_tail_bytes(form, rows, cols);
}
