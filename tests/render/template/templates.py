"""Small chat templates that process messages as the templates of the large model families do.

Each is written for these tests: it has the family's format and the operations that make rendering hard (tests on
content, splitting, trimming, slicing, JSON, macros, captured blocks, loop controls, namespaces).
"""

from typing import Final

CHATML: Final = """\
{% for message in messages %}
{% if loop.first and message.role != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

LLAMA: Final = """\
{%- macro head(role) %}{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' }}{% endmacro -%}
{{- bos_token }}
{%- set date = strftime_now('%d %b %Y') if strftime_now is defined else 'unknown' %}
{%- for message in messages %}
    {%- if loop.index0 == 0 and message.role == 'system' %}
        {{- head('system') + 'Today: ' + date + '\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- elif message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {{- head('assistant') ~ '{"name": "' ~ call.function.name ~ '", "parameters": ' }}
            {{- call.function.arguments | tojson }}{{ '}' ~ '<|eot_id|>' }}
        {%- endfor %}
    {%- elif message.role in ['tool', 'ipython'] %}
        {{- head('ipython') }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- head(message['role']) }}{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) + '\\n' }}{% endfor %}{% endif %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}
"""

QWEN: Final = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.open and message.role == 'user' and not (message.content.startswith('<tool_response>')
            and message.content.endswith('</tool_response>')) %}
        {%- set ns.open = false %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

MISTRAL: Final = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set told = messages[0]['content'] %}{% set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and told is defined %}
            {{- '[INST] ' + told + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + (message['content'] | trim) + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GEMMA: Final = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = {'assistant': 'model', 'user': 'user'}[message['role']] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

PARTS: Final = """\
{%- for message in messages %}
    {{- '<|' ~ message.role ~ '|>' }}
    {%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
    {{- '<|end|>' }}
{%- endfor %}
"""

# Other operations that a template may apply to its own strings and to those of a client.
ODDITIES: Final = """\
{%- set captured %}[{{ messages[0].content }}]<|captured|>{% endset %}
{%- set tag = '<|{}|>'.format('made') %}
{%- for message in messages %}
    {%- if not loop.first %}{% break %}{% endif %}
    {{- captured | trim }}{{ captured.split('<|')[-1] }}{{ tag }}{{ captured[1:] }}{{ captured[:-11] }}
    {{- ['<|a|>', message.content, '<|b|>'] | join('<|,|>') }}{{ '<|j|>'.join([message.content, '<|c|>']) }}
    {{- '<|x|>'.replace('x', message.content) }}{{ message.content.replace('e', '<|e|>') }}
    {{- '<|%s|>' % message.content }}{{ {'user': '<|t|>'}[message.role] }}{{ ('<|u|>', ['<|l|>'])[1][0] }}
    {{- '<|{}|>'.format(message.content) }}{{ ('<|up|>' ~ message.content) | upper }}{{ message.content[::-1] }}
    {{- '<|s|>' | safe }}{{ message.content | length }}{{ '<|r|>' * 2 }}{{ loop.index ~ '<|n|>' }}{{ 1 + 1 }}
{%- endfor %}
"""

FAMILIES: Final = {"chatml": CHATML, "llama": LLAMA, "qwen": QWEN, "mistral": MISTRAL, "gemma": GEMMA}
