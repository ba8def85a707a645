/* A run's prediction from the words of `plan`. */
#ifndef RH_TESTS_PLAN_PREDICT_H
#define RH_TESTS_PLAN_PREDICT_H

#include "check.h"

#include "config/config.h"
#include "forecast/judge.h"
#include "forecast/machine_find.h"

#include <stdio.h>
#include <string.h>

enum { PREDICT_WORDS = 64, PREDICT_LINE = 1024 };

/* Rows of max_length tokens. 0 or RH_DOES_NOT_FIT; other faults end the test. The caller frees *out. */
static inline int predict_words(const char *line, struct rh_forecast *out)
{
	char words[PREDICT_LINE], *argument[PREDICT_WORDS], *place = NULL;
	int count = 0;
	struct rh_config config;
	struct rh_machine_found found;
	struct rh_forecast_input input;
	snprintf(words, sizeof words, "%s", line);
	for (char *word = strtok_r(words, " ", &place); word; word = strtok_r(NULL, " ", &place)) {
		assert_true(count < PREDICT_WORDS);
		argument[count++] = word;
	}
	check_ok(rh_config_load("plan", count, argument, NULL, &config));
	check_ok(rh_machine_find(&config, &found));
	check_ok(rh_forecast_input_of_machine(&config, &found.machine, NULL, &input));
	int rc = rh_forecast_judged(&config, &found.machine, &input, NULL, out);
	if (rc != RH_DOES_NOT_FIT && rc != -ENOSPC)
		check_ok(rc);
	rh_error_clear();
	rh_forecast_input_free(&input);
	rh_machine_found_free(&found);
	rh_config_free(&config);
	return rc;
}

/* Tokens/s; 0: it does not fit. */
static inline double predict_speed(const char *line)
{
	struct rh_forecast is = {0};
	int rc = predict_words(line, &is);
	double speed = rc ? 0 : is.tokens_per_second;
	rh_forecast_free(&is);
	return speed;
}

#endif
