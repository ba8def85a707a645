/* Numbers, sizes and truth values as people write them. */
#include "config/config_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The length of a decimal number ([+-] digits [. digits] [e [+-] digits]) that begins `text`; 0: none. */
static size_t number_length(const char *text)
{
	const char *at = text;
	size_t digits = 0;
	at += *at == '+' || *at == '-';
	for (; isdigit((unsigned char)*at); at++)
		digits++;
	if (*at == '.')
		for (at++; isdigit((unsigned char)*at); at++)
			digits++;
	if (!digits)
		return 0;
	const char *exponent = at;
	if (*exponent == 'e' || *exponent == 'E') {
		exponent++;
		exponent += *exponent == '+' || *exponent == '-';
		if (isdigit((unsigned char)*exponent)) {
			while (isdigit((unsigned char)*exponent))
				exponent++;
			at = exponent;
		}
	}
	return (size_t)(at - text);
}

int config_parse_real(const char *text, double *out)
{
	size_t length = number_length(text);
	if (!length || text[length])
		return -EINVAL;
	errno = 0; /* also where the number is too small to be told from 0 */
	*out = strtod(text, NULL);
	return errno || !isfinite(*out) ? -ERANGE : 0;
}

/* "1e3", as people write many steps: whole all the same. */
static int parse_power(const char *text, int64_t *out)
{
	double value;
	if (!strpbrk(text, "eE") || config_parse_real(text, &value) || value != floor(value) || fabs(value) > 0x1p53)
		return -EINVAL;
	*out = (int64_t)value;
	return 0;
}

int config_parse_integer(const char *text, int64_t *out)
{
	const char *digits = text + (*text == '-' || *text == '+');
	if (!*digits || digits[strspn(digits, "0123456789")])
		return parse_power(text, out);
	errno = 0;
	*out = strtoll(text, NULL, 10);
	return errno ? -ERANGE : 0;
}

int config_parse_bool(const char *text, int *out)
{
	static const char *const words[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "false", "False", "FALSE", "no", "No", "NO"};
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		if (strcmp(text, words[i]))
			continue;
		*out = i < 6;
		return 0;
	}
	return -EINVAL;
}

/* "24GiB", "24G", "1.5 GB", "1073741824": binary and decimal units, upper or lower case, a lone letter binary; a fraction of a byte is
 * dropped. */
int config_parse_size(const char *text, int64_t *out)
{
	static const struct {
		const char *name;
		double bytes;
	} units[] = {{"", 1},         {"b", 1},        {"kb", 1e3},     {"mb", 1e6},   {"gb", 1e9},   {"tb", 1e12},  {"kib", 0x1p10},
	             {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}, {"k", 0x1p10}, {"m", 0x1p20}, {"g", 0x1p30}, {"t", 0x1p40}};
	if (!text[strspn(text, "0123456789")])
		return config_parse_integer(text, out);
	size_t length = number_length(text);
	if (!length || text[0] == '-')
		return -EINVAL;
	const char *unit = text + length + strspn(text + length, " ");
	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
		if (strcasecmp(unit, units[i].name))
			continue;
		double bytes = strtod(text, NULL) * units[i].bytes;
		if (!(bytes < 0x1p62))
			return -ERANGE;
		*out = (int64_t)bytes;
		return i || bytes == floor(bytes) ? 0 : -EINVAL;
	}
	return -EINVAL;
}
