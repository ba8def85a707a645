/* One value as JSON. */
#include "parquet/parquet_internal.h"

#include "core/float16.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SECONDS_OF_DAY = 86400, TEXT = 48 };

static int64_t whole(const struct parquet_span *value)
{
	int64_t number = 0;
	int32_t small;
	if (value->length == sizeof small) {
		memcpy(&small, value->bytes, sizeof small);
		return small;
	}
	memcpy(&number, value->bytes, sizeof number);
	return number;
}

static json_t *unsigned_number(const struct parquet_span *value)
{
	int64_t number = whole(value);
	if (value->length == sizeof(int32_t))
		return json_integer((json_int_t)(uint32_t)number);
	return number < 0 ? json_real((double)(uint64_t)number) : json_integer((json_int_t)number);
}

/* Two's complement: of numbers little-endian, of bytes big-endian. */
static json_t *decimal(const struct parquet_leaf *leaf, const struct parquet_span *value)
{
	double number = 0;
	if (leaf->type == PARQUET_INT32 || leaf->type == PARQUET_INT64) {
		number = (double)whole(value);
	} else if (leaf->type == PARQUET_BYTES || leaf->type == PARQUET_FIXED_BYTES) {
		for (size_t i = 0; i < value->length; i++)
			number = number * 256 + (i ? value->bytes[i] : (int8_t)value->bytes[i]);
	} else {
		return json_null();
	}
	number /= pow(10, leaf->scale);
	return isfinite(number) ? json_real(number) : json_null();
}

/* The date of a day counted from 1970-01-01, in the Gregorian calendar: years that begin in March, 400 of which are 146,097 days. */
static void date_of(int64_t day, char text[TEXT])
{
	enum { SPAN = 146097, FROM_MARCH_0 = 719468 };
	day += FROM_MARCH_0;
	int64_t span = day >= 0 ? day / SPAN : (day - SPAN + 1) / SPAN, in_span = day - span * SPAN;
	int64_t year = (in_span - in_span / 1460 + in_span / 36524 - in_span / 146096) / 365;
	int64_t in_year = in_span - (365 * year + year / 4 - year / 100), month = (5 * in_year + 2) / 153;
	int64_t in_month = in_year - (153 * month + 2) / 5 + 1;
	month += month < 10 ? 3 : -9;
	snprintf(text, TEXT, "%04lld-%02lld-%02lld", (long long)(year + span * 400 + (month <= 2)), (long long)month, (long long)in_month);
}

/* "12:30:05", with parts of a second where there are some. */
static void time_of(int64_t parts, int64_t unit, char *text, size_t room)
{
	int64_t second = parts / unit, part = parts % unit;
	int digits = unit == 1000 ? 3 : unit == 1000000 ? 6 : 9;
	int length = snprintf(text, room, "%02lld:%02lld:%02lld", (long long)(second / 3600), (long long)(second / 60 % 60),
	                      (long long)(second % 60));
	if (part && length > 0 && (size_t)length < room)
		snprintf(text + length, room - (size_t)length, ".%0*lld", digits, (long long)part);
}

static json_t *time_text(const struct parquet_leaf *leaf, int64_t value)
{
	int64_t of_day = leaf->unit * SECONDS_OF_DAY, day = value / of_day, rest = value % of_day;
	char text[TEXT];
	if (rest < 0) {
		rest += of_day;
		day--;
	}
	size_t length = 0;
	if (leaf->meaning == MEANS_TIMESTAMP) {
		date_of(day, text);
		length = strlen(text);
		text[length++] = 'T';
	}
	time_of(rest, leaf->unit, text + length, sizeof text - length);
	return json_string(text);
}

static json_t *real(double number)
{
	return isfinite(number) ? json_real(number) : json_null();
}

static json_t *number_of(const struct parquet_leaf *leaf, const struct parquet_span *value)
{
	float narrow;
	double wide;
	char text[TEXT];
	uint16_t half;
	switch (leaf->meaning) {
	case MEANS_UNSIGNED:
		return unsigned_number(value);
	case MEANS_DECIMAL:
		return decimal(leaf, value);
	case MEANS_DATE:
		date_of(whole(value), text);
		return json_string(text);
	case MEANS_TIME:
	case MEANS_TIMESTAMP:
		return time_text(leaf, whole(value));
	case MEANS_HALF:
		memcpy(&half, value->bytes, sizeof half);
		return real((double)rh_f16_to_f32(half));
	case MEANS_TEXT:
	case MEANS_JSON:
	case MEANS_NOTHING:
		return json_null();
	case MEANS_ITSELF:
		break;
	}
	switch (leaf->type) {
	case PARQUET_BOOLEAN:
		return json_boolean(*value->bytes);
	case PARQUET_FLOAT:
		memcpy(&narrow, value->bytes, sizeof narrow);
		return real((double)narrow);
	case PARQUET_DOUBLE:
		memcpy(&wide, value->bytes, sizeof wide);
		return real(wide);
	case PARQUET_INT32:
	case PARQUET_INT64:
		return json_integer((json_int_t)whole(value));
	default:
		return json_null();
	}
}

static int fail_text(const struct rh_parquet *file, const struct parquet_leaf *leaf)
{
	return rh_fail(-EINVAL, "%s (row %lld): column '%.80s' is not UTF-8; write it as UTF-8", rh_file_path(file->file),
	               (long long)file->row + 1, leaf->path);
}

static int json_of(struct rh_parquet *file, const struct parquet_leaf *leaf, const struct parquet_span *value, json_t **out)
{
	enum { PARSER = 3 }; /* copies of the text: the value's own, and the parser's */
	const char *text = (const char *)value->bytes;
	int rc = parquet_count(file, RH_JSON_VALUE_BYTES + rh_json_bytes_of_values(text, value->length), PARSER * (int64_t)value->length);
	if (rc)
		return rc;
	rc = rh_json_parse(text, value->length, leaf->path, out);
	return rc ? rh_fail_in(rc, "%s (row %lld)", rh_file_path(file->file), (long long)file->row + 1) : 0;
}

static int text_of(struct rh_parquet *file, const struct parquet_leaf *leaf, const struct parquet_span *value, json_t **out)
{
	int rc = parquet_count(file, RH_JSON_VALUE_BYTES, (int64_t)value->length);
	if (rc)
		return rc;
	*out = json_stringn(value->length ? (const char *)value->bytes : "", value->length);
	if (!*out && leaf->meaning == MEANS_TEXT)
		return fail_text(file, leaf);
	if (!*out)
		*out = json_null();
	return 0;
}

int parquet_cell_read(struct rh_parquet *file, struct parquet_column *column, json_t **out)
{
	const struct parquet_leaf *leaf = column->leaf;
	struct parquet_span value;
	int rc = parquet_values_next(column, &value);
	if (rc)
		return rc == -EINVAL ? parquet_fail_column(file, column, "a value is not there") : rc;
	if (leaf->meaning == MEANS_JSON)
		return json_of(file, leaf, &value, out);
	if (leaf->type == PARQUET_BYTES && (leaf->meaning == MEANS_ITSELF || leaf->meaning == MEANS_TEXT))
		return text_of(file, leaf, &value, out);
	rc = parquet_count(file, RH_JSON_VALUE_BYTES, 0);
	if (rc)
		return rc;
	*out = number_of(leaf, &value);
	return *out ? 0 : rh_fail(-ENOMEM, "%s: out of host memory", rh_file_path(file->file));
}
