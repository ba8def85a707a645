#include "core/form.h"

#include "core/error.h"

#define ROW(name, element, run, scale) [RH_FORM_##name] = {element, run, scale},
static const struct rh_form_traits traits[RH_FORMS] = {RH_FORM_LIST(ROW)};

const struct rh_form_traits *rh_form_traits(enum rh_form form)
{
	RH_ASSERT(form > RH_FORM_PLAIN && form < RH_FORMS);
	return &traits[form];
}

enum rh_form rh_form_of(enum rh_dtype element, int has_scales)
{
	for (int f = RH_FORM_PLAIN + 1; f < RH_FORMS; f++)
		if (traits[f].element == element && (traits[f].run != 0) == has_scales)
			return (enum rh_form)f;
	return RH_FORM_PLAIN;
}

int64_t rh_form_element_bytes(enum rh_form form, int64_t rows, int64_t cols)
{
	return rh_dtype_bytes(rh_form_traits(form)->element, rows * cols);
}

int64_t rh_form_scale_bytes(enum rh_form form, int64_t rows, int64_t cols)
{
	const struct rh_form_traits *of = rh_form_traits(form);
	return of->run ? rh_dtype_bytes(of->scale, rows * ((cols + of->run - 1) / of->run)) : 0;
}
