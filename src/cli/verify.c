/* `roundhouse verify`: a step's gradients, as the run computes them, beside those of one device that holds everything. */
#include "cli/verbs.h"
#include "core/json.h"
#include "core/log.h"
#include "train/gradient_check.h"

#include <stdio.h>

enum { SHOWN = 20 };

static int print_json(const struct rh_gradient_check *check)
{
	json_t *list = json_array();
	for (int64_t i = 0; list && i < check->tensors; i++) {
		const struct rh_gradient_of *of = &check->tensor[i];
		(void)json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:o, s:o, s:o}", "name", of->name, "verdict",
		                                            rh_gradient_verdict_name(of->verdict), "elements", (json_int_t)of->elements,
		                                            "difference", rh_json_number(of->difference), "norm", rh_json_number(of->norm),
		                                            "reference_norm", rh_json_number(of->reference_norm)));
	}
	return verb_print_json(json_pack("{s:b, s:b, s:o, s:o, s:o, s:I, s:I, s:s, s:s, s:o}", "agrees", !check->bad, "bitwise",
	                                 check->is_bitwise, "tolerance", rh_json_number(check->is_bitwise ? 0 : check->tolerance), "loss",
	                                 rh_json_number(check->loss), "reference_loss", rh_json_number(check->reference_loss), "layers",
	                                 (json_int_t)check->layers, "all_layers", (json_int_t)check->all_layers, "run", check->ways[0],
	                                 "reference", check->ways[1], "tensors", list));
}

static void print_text(const struct rh_gradient_check *check)
{
	double worst = 0;
	int64_t equal = 0, shown = 0;
	for (int64_t i = 0; i < check->tensors; i++) {
		equal += check->tensor[i].verdict == RH_GRADIENT_EQUAL;
		worst = check->tensor[i].difference > worst ? check->tensor[i].difference : worst;
	}
	printf("run        %s\nreference  %s\n", check->ways[0], check->ways[1]);
	printf("step       %lld micro-batch%s, %lld tokens; loss %.9g, reference %.9g\n", (long long)check->micro_batches,
	       check->micro_batches == 1 ? "" : "es", (long long)check->tokens, check->loss, check->reference_loss);
	printf("gradients  of %lld tensors, %lld equal in each bit", (long long)check->tensors, (long long)equal);
	if (check->layers < check->all_layers)
		printf(" (the first %lld of %lld layers)", (long long)check->layers, (long long)check->all_layers);
	if (!check->is_bitwise)
		printf("; within rounding the others may be %.0e apart, the largest is %.1e", check->tolerance, worst);
	printf("\n");
	for (int64_t i = 0; i < check->tensors; i++) {
		const struct rh_gradient_of *of = &check->tensor[i];
		if (of->verdict <= RH_GRADIENT_CLOSE || ++shown > SHOWN)
			continue;
		printf("%s: %s: |a-b| / |b| is %.3g, |a| %.3g, |b| of the reference %.3g\n", of->name,
		       rh_gradient_verdict_name(of->verdict), of->difference, of->norm, of->reference_norm);
	}
	if (shown > SHOWN)
		printf("... and %lld more\n", (long long)(shown - SHOWN));
	if (check->bad)
		printf("%lld of %lld gradients are not the reference's: this is a fault of the program, please report it\n",
		       (long long)check->bad, (long long)check->tensors);
	else
		printf("the run computes the gradients that it should\n");
}

int verb_verify(const struct rh_config *config)
{
	struct rh_gradient_check check;
	int rc = rh_gradient_check(config, &check);
	if (!rc && config->json)
		rc = print_json(&check);
	else if (!rc)
		print_text(&check);
	rc = rc ? rc : check.bad ? VERB_SAYS_NO : 0;
	rh_gradient_check_free(&check);
	return rc;
}
