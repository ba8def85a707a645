/* The built-in templates as Jinja, for those who read what a run writes. Each renders what chat.c does; tests/reference/data_chat.py shows
 * that with transformers. Every tag strips the blanks around it, so the text means the same whether or not a reader trims blocks. */
#include "data/chat_internal.h"

#define LINE(text) text "\n"

#define PROMPT(opening)                                                                                                                    \
	LINE("{%- if add_generation_prompt -%}")                                                                                           \
	LINE("    {{- '" opening "' -}}")                                                                                                  \
	LINE("{%- endif -%}")

#define CHATML_TURNS                                                                                                                       \
	LINE("{%- for message in messages -%}")                                                                                            \
	LINE("    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}")                                \
	LINE("{%- endfor -%}")                                                                                                             \
	PROMPT("<|im_start|>assistant\\n")

#define CHATML_DEFAULT(system)                                                                                                             \
	LINE("{%- if messages[0]['role'] != 'system' -%}")                                                                                 \
	LINE("    {{- '<|im_start|>system\\n" system "<|im_end|>\\n' -}}")                                                                 \
	LINE("{%- endif -%}")                                                                                                              \
	CHATML_TURNS

const char chat_jinja_chatml[] = CHATML_TURNS;
const char chat_jinja_smollm2[] = CHATML_DEFAULT("You are a helpful AI assistant named SmolLM, trained by Hugging Face");
const char chat_jinja_qwen2[] = CHATML_DEFAULT("You are a helpful assistant.");
const char chat_jinja_qwen25[] = CHATML_DEFAULT("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");

/* enable_thinking=false is what Qwen3's readers pass for an answer without reasoning; such answers are trained with this empty block. */
const char chat_jinja_qwen3[] = LINE("{%- set asked = namespace(last=messages|length - 1) -%}") LINE("{%- for message in messages -%}")
        LINE("    {%- set content = message['content'] -%}") LINE(
                "    {%- if message['role'] == 'user' and not (content.startswith('<tool_response>') and "
                "content.endswith('</tool_response>')) -%}") LINE("        {%- set asked.last = loop.index0 -%}") LINE("    {%- endif -%}")
                LINE("{%- endfor -%}") LINE("{%- for message in messages -%}") LINE("    {%- set content = message['content'] -%}") LINE(
                        "    {{- '<|im_start|>' + message['role'] + '\\n' -}}") LINE("    {%- if message['role'] == 'assistant' -%}")
                        LINE("        {%- set thought = '' -%}") LINE("        {%- if message['reasoning_content'] is string -%}") LINE(
                                "            {%- set thought = message['reasoning_content'] -%}")
                                LINE("        {%- elif '</think>' in content -%}") LINE(
                                        "            {%- set thought = "
                                        "content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}")
                                        LINE("            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}") LINE(
                                                "        {%- endif -%}")
                                                LINE("        {%- if loop.index0 > asked.last and (loop.last or thought) -%}") LINE(
                                                        "            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + "
                                                        "content.lstrip('\\n') -}}") LINE("        {%- else -%}")
                                                        LINE("            {{- content -}}") LINE("        {%- endif -%}") LINE(
                                                                "    {%- else -%}") LINE("        {{- content -}}")
                                                                LINE("    {%- endif -%}") LINE("    {{- '<|im_end|>\\n' -}}") LINE(
                                                                        "{%- endfor -%}") LINE("{%- if add_generation_prompt -%}")
                                                                        LINE("    {{- '<|im_start|>assistant\\n' -}}") LINE(
                                                                                "    {%- if enable_thinking is defined and not "
                                                                                "enable_thinking -%}")
                                                                                LINE("        {{- '<think>\\n\\n</think>\\n\\n' -}}")
                                                                                        LINE("    {%- endif -%}") LINE("{%- endif -%}");

const char chat_jinja_llama2[] = LINE("{%- set skipped = 1 if messages[0]['role'] == 'system' else 0 -%}") LINE(
        "{%- for message in messages[skipped:] -%}")
        LINE("    {%- if message['role'] != ('user' if loop.index0 % 2 == 0 else 'assistant') -%}") LINE(
                "        {{- raise_exception('roles must alternate: user, assistant, after an optional system turn') -}}")
                LINE("    {%- endif -%}") LINE("    {%- if message['role'] == 'assistant' -%}") LINE(
                        "        {{- ' ' + message['content'].strip() + ' </s>' -}}") LINE("    {%- else -%}")
                        LINE("        {%- set content = message['content'] -%}") LINE("        {%- if skipped and loop.first -%}") LINE(
                                "            {%- set content = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' + content -%}")
                                LINE("        {%- endif -%}") LINE("        {{- bos_token -}}")
                                        LINE("        {{- '[INST] ' + content.strip() + ' [/INST]' -}}") LINE("    {%- endif -%}")
                                                LINE("{%- endfor -%}");

#define LLAMA3_TURNS(messages)                                                                                                             \
	LINE("{%- for message in " messages " -%}")                                                                                        \
	LINE("    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'].strip() + '<|eot_id|>' "    \
	     "-}}")                                                                                                                        \
	LINE("{%- endfor -%}")                                                                                                             \
	PROMPT("<|start_header_id|>assistant<|end_header_id|>\\n\\n")

const char chat_jinja_llama3[] = LINE("{{- bos_token -}}") LLAMA3_TURNS("messages");

/* The date is part of what was trained: no reader's clock comes in. */
const char chat_jinja_llama31[] = LINE("{%- set skipped = 1 if messages[0]['role'] == 'system' else 0 -%}") LINE("{{- bos_token -}}")
        LINE("{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n' -}}")
                LINE("{{- 'Today Date: 26 Jul 2024\\n\\n' -}}") LINE("{%- if skipped -%}")
                        LINE("    {{- messages[0]['content'].strip() -}}") LINE("{%- endif -%}") LINE("{{- '<|eot_id|>' -}}")
                                LLAMA3_TURNS("messages[skipped:]");
