#include "observe/html.h"

int rh_html_escape(struct rh_text *out, const char *text, size_t bytes)
{
	int rc = 0;
	for (size_t i = 0; i < bytes && !rc; i++) {
		char byte = text[i];
		const char *entity = byte == '<'    ? "&lt;"
		                     : byte == '>'  ? "&gt;"
		                     : byte == '&'  ? "&amp;"
		                     : byte == '"'  ? "&quot;"
		                     : byte == '\n' ? "\n"
		                     : byte == '\t' ? "<u>⇥</u>"
		                     : byte == '\r' ? "<u>␍</u>"
		                                    : NULL;
		if (entity)
			rc = rh_text_printf(out, "%s", entity);
		else
			rc = (unsigned char)byte < 0x20 ? rh_text_printf(out, "�") : rh_text_append(out, &byte, 1);
	}
	return rc;
}
