/* When held-out rows are a classification in disguise. */
#include "check.h"

#include "session/evaluate.h"

#include <string.h>

/* Documents as text: lower case is prompt, upper case is trained. */
static struct rh_choices find(const char *const *document, int documents)
{
	static int32_t ids[1024];
	static uint8_t trained[1024];
	static int64_t start[64];
	struct rh_dataset dataset = {.ids = ids, .trained = trained, .document_start = start, .documents = documents};
	for (int d = 0; d < documents; d++) {
		start[d] = dataset.tokens;
		for (const char *at = document[d]; *at; at++) {
			ids[dataset.tokens] = *at;
			trained[dataset.tokens++] = *at >= 'A' && *at <= 'Z';
		}
	}
	start[documents] = dataset.tokens;
	return rh_choices_find(&dataset);
}

static void test_choices_of_few_answers_are_counted(void **state)
{
	(void)state;
	const char *const rows[] = {"goodYES", "badNO", "fineYES", "wellYES"};
	struct rh_choices choices = find(rows, 4);
	assert_int_equal(choices.count, 2);
	assert_int_equal(choices.token[0], 'Y');
	assert_int_equal(choices.token[1], 'N');
	assert_int_equal(choices.documents[0], 3);
	assert_int_equal(choices.documents[1], 1);
}

static void test_choices_of_other_rows_are_none(void **state)
{
	(void)state;
	const char *const one[] = {"aYES", "bYES"}, *const first_token[] = {"aNO", "bNAY", "cNO", "dNAY"};
	const char *const cut[] = {"aYES", "bYE", "cNO", "dNO"}, *const runs[] = {"aYESbNO", "bNO", "cYES", "dNO"};
	const char *const trailing[] = {"aYESx", "bNOx", "cNOx", "dNOx"}, *const texts[] = {"aONE", "aTWO", "aSIX"};
	assert_int_equal(find(one, 2).count, 0);         /* no choice */
	assert_int_equal(find(first_token, 4).count, 0); /* the first token does not tell them apart */
	assert_int_equal(find(cut, 4).count, 0);
	assert_int_equal(find(runs, 4).count, 0);
	assert_int_equal(find(trailing, 4).count, 0); /* the answer is not the end */
	assert_int_equal(find(texts, 3).count, 0);    /* every row its own answer: texts, not classes */
	char many[2 * (RH_CHOICES_MAX + 1)][4];
	const char *row[2 * (RH_CHOICES_MAX + 1)];
	for (int i = 0; i < 2 * (RH_CHOICES_MAX + 1); i++) {
		snprintf(many[i], sizeof many[i], "a%cZ", 'A' + i / 2);
		row[i] = many[i];
	}
	assert_int_equal(find(row, 2 * RH_CHOICES_MAX).count, RH_CHOICES_MAX);
	assert_int_equal(find(row, 2 * RH_CHOICES_MAX + 2).count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_choices_of_few_answers_are_counted),
	        cmocka_unit_test(test_choices_of_other_rows_are_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
