{{/*
Checks that values.schema.json cannot express, or not with a message that lists what is allowed. The operator's template calls
this once; all problems are reported together.
*/}}
{{- define "thunderfleet.validate" -}}
{{- $problems := list }}
{{- with .Values.image }}
{{- if not (regexMatch "^[a-z0-9]+([._/:-]+[a-z0-9]+)*$" .repository) }}
{{- $problems = append $problems (printf "image.repository %q is not an image name: use [registry/]path in lower case, without a tag" .repository) }}
{{- else if regexMatch ":[^/]*$" .repository }}
{{- $problems = append $problems (printf "image.repository %q contains a tag: set image.tag instead" .repository) }}
{{- end }}
{{- if not (regexMatch "^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$" .tag) }}
{{- $problems = append $problems (printf "image.tag %q is not a tag: use at most 128 letters, digits and . _ -, starting with a letter, digit or _" .tag) }}
{{- end }}
{{- end }}
{{- range .Values.agent.modelFolders }}
{{- if or (not (regexMatch "^/[^/]" .)) (has ".." (splitList "/" .)) }}
{{- $problems = append $problems (printf "agent.modelFolders: %q is not an absolute path: start it with / and do not use .." .) }}
{{- end }}
{{- end }}
{{- with .Values.agent.modelStore }}
{{- if or (not (regexMatch "^/[^/]" .)) (has ".." (splitList "/" .)) (hasSuffix "/" .) }}
{{- $problems = append $problems (printf "agent.modelStore: %q is not an absolute path: start it with /, do not use .. and do not end it with /" .) }}
{{- end }}
{{- $store := . }}
{{- range $.Values.agent.modelFolders }}
{{- if eq $store . }}
{{- $problems = append $problems (printf "agent.modelStore: %q is also in agent.modelFolders, which hold models that Thunderfleet never changes: use another folder" $store) }}
{{- else if or (hasPrefix (printf "%s/" (trimSuffix "/" .)) $store) (hasPrefix (printf "%s/" $store) .) }}
{{- $problems = append $problems (printf "agent.modelStore: one of %q and %q of agent.modelFolders contains the other, and models would be found twice: use separate folders" $store .) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.hub }}
{{- range $name, $url := dict "endpoint" .endpoint "proxy" .proxy }}
{{- if and $url (not (regexMatch "^https?://[^/ ]+" $url)) }}
{{- $problems = append $problems (printf "hub.%s: %q is not a URL: start it with https:// or http://" $name $url) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.uris }}
{{- $hosts := .hosts }}
{{- range .privateHosts }}
{{- if not (has . $hosts) }}
{{- $problems = append $problems (printf "uris.privateHosts: %q is not in uris.hosts: add it there, in the same form" .) }}
{{- end }}
{{- end }}
{{- if and .certificateAuthorities (not (contains "-----BEGIN CERTIFICATE-----" .certificateAuthorities)) }}
{{- $problems = append $problems "uris.certificateAuthorities has no certificate in PEM: begin it with -----BEGIN CERTIFICATE-----" }}
{{- end }}
{{- end }}
{{- $maps := dict "commonLabels" .Values.commonLabels }}
{{- range $name := list "dashboard" "alerts" "podMonitors" }}
{{- $_ := set $maps (printf "%s.labels" $name) (index $.Values $name).labels }}
{{- end }}
{{- range $name := list "operator" "agent" "router" }}
{{- $component := index $.Values $name | default dict }}
{{- $_ := set $maps (printf "%s.podLabels" $name) $component.podLabels }}
{{- $_ := set $maps (printf "%s.nodeSelector" $name) $component.nodeSelector }}
{{- range $component.extraEnv }}
{{- if has .name (list "POD_NAME" "POD_NAMESPACE" "NODE_NAME" "HOST_IP") }}
{{- $problems = append $problems (printf "%s.extraEnv: the chart sets %s itself: use another name" $name .name) }}
{{- else if not (regexMatch "^[A-Za-z_.-][A-Za-z0-9_.-]*$" .name) }}
{{- $problems = append $problems (printf "%s.extraEnv: %q is not the name of a variable: use letters, digits and _, not starting with a digit" $name .name) }}
{{- end }}
{{- end }}
{{- range $part, $quantities := $component.resources }}
{{- range $resource, $quantity := $quantities }}
{{- if and (kindIs "string" $quantity) (not (regexMatch "^[0-9]+([.][0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$" $quantity)) }}
{{- $problems = append $problems (printf "%s.resources.%s: %q is not a quantity of %s: use a number, with a unit if needed, such as 500m or 1Gi" $name $part $quantity $resource) }}
{{- else if and (kindIs "float64" $quantity) (lt $quantity 0.0) }}
{{- $problems = append $problems (printf "%s.resources.%s: %v is not a quantity of %s: use a positive number" $name $part $quantity $resource) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $map := $maps }}
{{- range $key, $value := $map }}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $key) }}
{{- $problems = append $problems (printf "%s: %q is not the key of a label: use [domain/]name, the name of at most 63 letters, digits, - _ and ." $name $key) }}
{{- end }}
{{- if not (regexMatch "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$" $value) }}
{{- $problems = append $problems (printf "%s: %q is not the value of a label: use at most 63 letters, digits, - _ and ., the first and the last a letter or digit" $name $value) }}
{{- end }}
{{- end }}
{{- end }}
{{- $secrets := list ((.Values.router | default dict).tls | default dict).secretName }}
{{- range .Values.imagePullSecrets }}
{{- $secrets = append $secrets .name }}
{{- end }}
{{- range compact $secrets }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$" .) }}
{{- $problems = append $problems (printf "%q is not the name of a Secret: use lower-case letters, digits, - and ." .) }}
{{- end }}
{{- end }}
{{- $taken := list }}
{{- range $name, $need := dict "ports" 2 "ringPorts" 64 }}
{{- $range := index $.Values.operator $name }}
{{- $first := int $range.first }}
{{- $last := int $range.last }}
{{- if gt $first $last }}
{{- $problems = append $problems (printf "operator.%s: first (%d) is greater than last (%d)" $name $first $last) }}
{{- else if lt (add1 (sub $last $first)) $need }}
{{- $problems = append $problems (printf "operator.%s: %d to %d are too few ports for one rank: use at least %d" $name $first $last $need) }}
{{- end }}
{{- if ge $last 49152 }}
{{- $problems = append $problems (printf "operator.%s: %d to %d overlap the ephemeral ports of macOS: use ports below 49152" $name $first $last) }}
{{- end }}
{{- $taken = append $taken (dict "name" (printf "operator.%s" $name) "first" $first "last" $last) }}
{{- end }}
{{- $ports := dict "agent.port" .Values.agent.port "agent.metricsPort" .Values.agent.metricsPort "the kubelet's port" 10250 }}
{{- $router := .Values.router | default dict }}
{{- if $router.enabled }}
{{- if $router.port }}
{{- $_ := set $ports "router.port" $router.port }}
{{- else }}
{{- $problems = append $problems "router.port is not set: routers serve there; use a port such as 4141" }}
{{- end }}
{{- if not .Values.operator.demandPort }}
{{- $problems = append $problems "operator.demandPort is not set: routers report requests there; use a port such as 9402" }}
{{- end }}
{{- end }}
{{- if .Values.operator.runtimeClassName }}
{{- $_ := set $ports "operator.metricsPort" .Values.operator.metricsPort }}
{{- if $router.enabled }}
{{- $_ := set $ports "operator.demandPort" .Values.operator.demandPort }}
{{- end }}
{{- end }}
{{- range $name, $port := $ports }}
{{- $taken = append $taken (dict "name" $name "first" (int $port) "last" (int $port)) }}
{{- end }}
{{- $linux := list }}
{{- if not .Values.operator.runtimeClassName }}
{{- $onLinux := dict "the kubelet's port" 10250 "operator.metricsPort" .Values.operator.metricsPort }}
{{- if and $router.enabled .Values.operator.demandPort }}
{{- $_ := set $onLinux "operator.demandPort" .Values.operator.demandPort }}
{{- end }}
{{- if and $router.enabled $router.linuxReplicas $router.port }}
{{- $_ := set $onLinux "router.port" $router.port }}
{{- end }}
{{- range $name, $port := $onLinux }}
{{- $linux = append $linux (dict "name" $name "first" (int $port) "last" (int $port)) }}
{{- end }}
{{- end }}
{{- range $place, $used := dict "Mac" $taken "Linux node" $linux }}
{{- range $i, $one := $used }}
{{- range $other := slice $used (add1 $i) }}
{{- if and (le $one.first $other.last) (le $other.first $one.last) }}
{{- $problems = append $problems (printf "%s and %s both use port %d of a %s: use different ports" $one.name $other.name (max $one.first $other.first) $place) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if $problems }}
{{- fail (printf "invalid values:\n- %s" (join "\n- " $problems)) }}
{{- end }}
{{- end }}
