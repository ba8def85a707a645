/* A config.json that a test writes. */
#ifndef RH_TESTS_MODEL_CONFIG_CASE_H
#define RH_TESTS_MODEL_CONFIG_CASE_H

#include "check.h"

#include "core/log.h"
#include "model/config.h"

#include <string.h>

static inline int config_parse(const char *text, struct rh_model_config *out)
{
	json_t *json = NULL;
	int rc = rh_json_parse(text, strlen(text), "config.json", &json);
	if (!rc)
		rc = rh_model_config_parse(json, "config.json", out);
	json_decref(json);
	return rc;
}

/* It was refused, with a line that holds `part`. */
static inline void config_refused(int rc, const char *part)
{
	assert_int_equal(rc, -EINVAL);
	if (!strstr(rh_error(rc), part))
		fail_msg("the line '%s' does not hold '%s'", rh_error(rc), part);
}

#endif
