{{/*
What values.schema.json cannot refuse, or not with a sentence that says what is allowed. Called once, from the operator's
template; every problem is told at once.
*/}}
{{- define "thunderfleet.validate" -}}
{{- $problems := list }}
{{- with .Values.image }}
{{- if not (regexMatch "^[a-z0-9]+([._/:-]+[a-z0-9]+)*$" .repository) }}
{{- $problems = append $problems (printf "image.repository %q is not an image's name: write [registry/]path in lower case, without a tag" .repository) }}
{{- else if regexMatch ":[^/]*$" .repository }}
{{- $problems = append $problems (printf "image.repository %q carries a tag: write it to image.tag" .repository) }}
{{- end }}
{{- if not (regexMatch "^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$" .tag) }}
{{- $problems = append $problems (printf "image.tag %q is not a tag: use at most 128 letters, digits and . _ -, beginning with a letter, digit or _" .tag) }}
{{- end }}
{{- end }}
{{- range .Values.agent.modelFolders }}
{{- if or (not (regexMatch "^/[^/]" .)) (has ".." (splitList "/" .)) }}
{{- $problems = append $problems (printf "agent.modelFolders: %q is not an absolute path on the Macs: begin it with / and leave out .." .) }}
{{- end }}
{{- end }}
{{- $taken := list }}
{{- range $name, $need := dict "ports" 2 "ringPorts" 64 }}
{{- $range := index $.Values.operator $name }}
{{- $first := int $range.first }}
{{- $last := int $range.last }}
{{- if gt $first $last }}
{{- $problems = append $problems (printf "operator.%s: first (%d) comes after last (%d)" $name $first $last) }}
{{- else if lt (add1 (sub $last $first)) $need }}
{{- $problems = append $problems (printf "operator.%s: %d to %d are too few ports for one rank: give at least %d" $name $first $last $need) }}
{{- end }}
{{- if ge $last 49152 }}
{{- $problems = append $problems (printf "operator.%s: %d to %d reach into the Macs' ephemeral ports: keep them below 49152" $name $first $last) }}
{{- end }}
{{- $taken = append $taken (dict "name" (printf "operator.%s" $name) "first" $first "last" $last) }}
{{- end }}
{{- $ports := dict "agent.port" .Values.agent.port "agent.metricsPort" .Values.agent.metricsPort "the kubelet's port" 10250 }}
{{- if .Values.operator.runtimeClassName }}
{{- $_ := set $ports "operator.metricsPort" .Values.operator.metricsPort }}
{{- end }}
{{- range $name, $port := $ports }}
{{- $taken = append $taken (dict "name" $name "first" (int $port) "last" (int $port)) }}
{{- end }}
{{- range $i, $one := $taken }}
{{- range $other := slice $taken (add1 $i) }}
{{- if and (le $one.first $other.last) (le $other.first $one.last) }}
{{- $problems = append $problems (printf "%s and %s share port %d of a Mac: keep them apart" $one.name $other.name (max $one.first $other.first)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if $problems }}
{{- fail (printf "these values cannot work:\n- %s" (join "\n- " $problems)) }}
{{- end }}
{{- end }}
