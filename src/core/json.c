#include "core/json.h"

#include "core/file.h"
#include "core/lfs.h"
#include "core/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLAGS = JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY };

/* What becomes of whole numbers that 64 bits do not hold. */
enum wide_numbers {
	WIDE_REAL,  /* reals: transformers writes 1000000000000000019884624838656 for "no limit" */
	WIDE_DIGITS /* rh_json_digits */
};

/* The key of an object that stands for a whole number. No text can hold it: NUL is refused in keys. */
static const char digits_key[] = "\0digits";
enum { DIGITS_KEY = sizeof digits_key - 1 };

const char *rh_json_digits(const json_t *value)
{
	return json_is_object(value) ? json_string_value(json_object_getn(value, digits_key, DIGITS_KEY)) : NULL;
}

static int is_wide(const char *number, size_t length)
{
	char digits[24];
	if (memchr(number, '.', length) || memchr(number, 'e', length) || memchr(number, 'E', length))
		return 0;
	if (length >= sizeof digits)
		return 1;
	memcpy(digits, number, length);
	digits[length] = 0;
	errno = 0;
	(void)strtoll(digits, NULL, 10);
	return errno == ERANGE;
}

/* A text that jansson takes: wide numbers become reals, or, where `name` is not NULL, {name: "digits"}. */
static int rewrite(const char *bytes, size_t length, const char *name, struct rh_text *out)
{
	int in_string = 0, rc = 0;
	for (size_t at = 0; !rc && at < length;) {
		size_t end = at + 1;
		int is_number = 0;
		if (in_string) {
			in_string = bytes[at] != '"';
			end += bytes[at] == '\\' && end < length;
		} else if (bytes[at] == '"') {
			in_string = 1;
		} else if (strchr("-0123456789", bytes[at]) && bytes[at]) { /* a number whole, with fraction and exponent */
			is_number = 1;
			while (end < length && bytes[end] && strchr("+-.eE0123456789", bytes[end]))
				end++;
		}
		if (!is_number || !is_wide(bytes + at, end - at))
			rc = rh_text_append(out, bytes + at, end - at);
		else if (name)
			rc = rh_text_printf(out, "{\"%s\":\"%.*s\"}", name, (int)(end - at), bytes + at);
		else
			rc = rh_text_printf(out, "%.*s.0", (int)(end - at), bytes + at);
		at = end;
	}
	return rc;
}

/* The digits that an object {name: "digits"} holds, under digits_key; a new reference. NULL: it is another value. */
static json_t *digits_of(json_t *value, const char *name)
{
	json_t *digits = json_object_size(value) == 1 ? json_object_get(value, name) : NULL, *object = digits ? json_object() : NULL;
	if (object && json_object_setn_new_nocheck(object, digits_key, DIGITS_KEY, json_incref(digits))) {
		json_decref(object);
		object = NULL;
	}
	return object;
}

/* Replaces such objects below `value`. */
static void take_digits(json_t *value, const char *name)
{
	json_t *fresh;
	for (size_t i = 0; i < json_array_size(value); i++) {
		fresh = digits_of(json_array_get(value, i), name);
		if (fresh)
			(void)json_array_set_new(value, i, fresh);
		else
			take_digits(json_array_get(value, i), name);
	}
	for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
		fresh = digits_of(json_object_iter_value(at), name);
		if (fresh)
			(void)json_object_iter_set_new(value, at, fresh);
		else
			take_digits(json_object_iter_value(at), name);
	}
}

static int load(const char *bytes, size_t length, enum wide_numbers wide, json_t **out, json_error_t *fault)
{
	*out = json_loadb(bytes, length, FLAGS, fault);
	if (*out || json_error_code(fault) != json_error_numeric_overflow)
		return 0;
	struct rh_text text = {0};
	char name[32] = "digits";
	for (int i = 0; memmem(bytes, length, name, strlen(name)); i++) /* one that the text does not hold */
		snprintf(name, sizeof name, "digits%d", i);
	int rc = rewrite(bytes, length, wide == WIDE_DIGITS ? name : NULL, &text);
	if (!rc)
		*out = json_loadb(text.bytes, text.length, FLAGS, fault);
	if (*out && wide == WIDE_DIGITS) {
		json_t *whole = digits_of(*out, name);
		take_digits(*out, name);
		if (whole)
			json_decref(*out);
		*out = whole ? whole : *out;
	}
	rh_text_free(&text);
	return rc;
}

/* How to mend what programs often write in place of JSON; an empty string where the fault is none of these. */
static const char *mend_of(json_error_t *fault)
{
	static const struct {
		const char *said, *mend;
	} known[] = {
	        {"near '\''", "; strings stand in double quotes: Python's json.dumps writes JSON, its str does not"},
	        {"near 'None'", "; Python's None is null in JSON: json.dumps writes it"},
	        {"near 'NaN'", "; JSON has no NaN; write null"},
	        {"string or '}' expected near '}'", "; no comma stands behind an object's last member; take it out"},
	        {"unexpected token near ']'", "; no comma stands behind an array's last item; take it out"},
	        {"end of file expected near ','", "; no comma stands between lines of JSON; take it out"},
	};
	if (json_error_code(fault) == json_error_invalid_utf8)
		return "; the text must be UTF-8: iconv -f LATIN1 -t UTF-8 converts it from Latin-1";
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strstr(fault->text, known[i].said))
			return known[i].mend;
	return "";
}

static int parse(const char *bytes, size_t length, const char *where, enum wide_numbers wide, json_t **out)
{
	json_error_t fault;
	int rc = load(bytes, length, wide, out, &fault);
	if (rc || *out)
		return rc;
	if (!length || !memchr(bytes, '\n', length)) /* `where` names the line of a file of lines */
		return rh_fail(-EINVAL, "%s: not valid JSON at column %d: %s%s", where, fault.column, fault.text, mend_of(&fault));
	return rh_fail(-EINVAL, "%s: not valid JSON at line %d, column %d: %s%s", where, fault.line, fault.column, fault.text,
	               mend_of(&fault));
}

int rh_json_parse(const char *bytes, size_t length, const char *where, json_t **out)
{
	return parse(bytes, length, where, WIDE_REAL, out);
}

int rh_json_parse_data(const char *bytes, size_t length, const char *where, json_t **out)
{
	return parse(bytes, length, where, WIDE_DIGITS, out);
}

int rh_json_parse_at(const char *bytes, size_t length, const char *path, int64_t line, json_t **out)
{
	json_error_t fault;
	int rc = load(bytes, length, WIDE_DIGITS, out, &fault);
	if (rc || *out)
		return rc;
	return rh_fail(-EINVAL, "%s:%lld: not valid JSON at column %d: %s%s", path, (long long)(line + fault.line - 1), fault.column,
	               fault.text, mend_of(&fault));
}

int rh_json_load(const char *path, json_t **out)
{
	struct rh_bytes file;
	int rc = rh_file_load(path, &file);
	if (rc)
		return rc;
	rc = rh_lfs_refuse(path, file.bytes, file.length);
	if (!rc)
		rc = rh_json_parse(file.bytes, file.length, path, out);
	rh_bytes_free(&file);
	return rc;
}

static int member(const json_t *object, const char *key, const char *where, enum rh_json_need need, const json_t **out)
{
	if (!json_is_object(object))
		return rh_fail(-EINVAL, "%s: expected a JSON object", where);
	const json_t *value = json_object_get(object, key);
	if (json_is_null(value))
		value = NULL;
	if (!value && need == RH_JSON_REQUIRED)
		return rh_fail(-EINVAL, "%s: '%s' is missing", where, key);
	*out = value;
	return 0;
}

int rh_json_int(const json_t *object, const char *key, const char *where, enum rh_json_need need, int64_t *out)
{
	const json_t *value = NULL;
	int rc = member(object, key, where, need, &value);
	if (rc || !value)
		return rc;
	if (!json_is_integer(value))
		return rh_fail(-EINVAL, "%s: '%s' must be a whole number", where, key);
	*out = json_integer_value(value);
	return 0;
}

int rh_json_real(const json_t *object, const char *key, const char *where, enum rh_json_need need, double *out)
{
	const json_t *value = NULL;
	int rc = member(object, key, where, need, &value);
	if (rc || !value)
		return rc;
	if (!json_is_number(value))
		return rh_fail(-EINVAL, "%s: '%s' must be a number", where, key);
	*out = json_number_value(value);
	return 0;
}

int rh_json_bool(const json_t *object, const char *key, const char *where, enum rh_json_need need, int *out)
{
	const json_t *value = NULL;
	int rc = member(object, key, where, need, &value);
	if (rc || !value)
		return rc;
	if (!json_is_boolean(value))
		return rh_fail(-EINVAL, "%s: '%s' must be true or false", where, key);
	*out = json_is_true(value);
	return 0;
}

int rh_json_string(const json_t *object, const char *key, const char *where, enum rh_json_need need, const char **out)
{
	const json_t *value = NULL;
	int rc = member(object, key, where, need, &value);
	if (rc || !value)
		return rc;
	if (!json_is_string(value))
		return rh_fail(-EINVAL, "%s: '%s' must be a string", where, key);
	*out = json_string_value(value);
	return 0;
}

const json_t *rh_json_at(const json_t *object, const char *path)
{
	while (object && *path) {
		char key[64];
		size_t length = strcspn(path, ".");
		snprintf(key, sizeof key, "%.*s", (int)length, path);
		object = json_object_get(object, key);
		path += length + (path[length] == '.');
	}
	return object;
}

double rh_json_number_at(const json_t *object, const char *path)
{
	const json_t *number = rh_json_at(object, path);
	return json_is_number(number) ? json_number_value(number) : NAN;
}

json_t *rh_json_number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

int64_t rh_json_bytes_of_values(const char *json, size_t length)
{
	int64_t bytes = 0;
	int in_string = 0;
	for (size_t at = 0; at < length; at++) {
		if (in_string) {
			at += json[at] == '\\';
			in_string = json[at] != '"';
			continue;
		}
		in_string = json[at] == '"';
		bytes += json[at] == ','                      ? RH_JSON_VALUE_BYTES
		         : json[at] == ':'                    ? RH_JSON_MEMBER_BYTES
		         : json[at] == '{' || json[at] == '[' ? RH_JSON_CONTAINER_BYTES
		                                              : 0;
	}
	return bytes;
}
