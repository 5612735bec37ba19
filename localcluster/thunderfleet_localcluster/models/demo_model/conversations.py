"""Training data of the demo's model: questions in several phrasings, each with its answer. Data only.

Every answer is true of this project, so the demo's answers are useful. ``FALLBACK`` answers questions that
are not listed; ``UNLISTED`` are such questions, for training and for the test that the model falls back.
"""

from __future__ import annotations

from typing import Final

DEMO_QUESTIONS: Final = ("What is Thunderfleet?", "Who stores my model?", "What happens when a rank dies?")
"""The questions of the demo, in order; each is the first phrasing of an entry below."""

CONVERSATIONS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        ("What is Thunderfleet?", "What does Thunderfleet do?", "Tell me about Thunderfleet.", "Explain Thunderfleet."),
        "Thunderfleet is Kubernetes for Macs that are joined by Thunderbolt cables. It places a language model on as many Macs "
        "as it needs, starts one process on each, and keeps the group running when a process, a cable or a Mac fails.",
    ),
    (
        ("Who stores my model?", "Where is the model stored?", "Where are the weights?", "Where do the weights live?"),
        "Each Mac keeps the weights in a folder on its own disk. No Mac of the group holds more of the model in memory "
        "than its share, so a model can be larger than any one of them.",
    ),
    (
        ("What happens when a rank dies?", "What if a rank is killed?", "What happens when a process crashes?"),
        "The other ranks notice it at once and stop. The supervisors then form the group again, load the model and serve as "
        "before. Open streams end with an error that names the cause.",
    ),
    (
        ("Hello", "Hi", "Hello!", "Hi there", "Good morning"),
        "Hello! I am a very small model that was trained for the demo. Ask me what Thunderfleet is.",
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Which model is this?"),
        "I am the demo model of Thunderfleet: four layers, half a million parameters, trained on a page of questions and "
        "answers.",
    ),
    (
        ("How are you?", "How is it going?"),
        "All my ranks are connected and every layer is loaded, so I am well. Thank you for asking.",
    ),
    (
        ("What is a ModelDeployment?", "What does a ModelDeployment do?", "Explain ModelDeployment."),
        "A ModelDeployment names a model to serve. The operator chooses the Macs, starts a runner pod for each rank and writes "
        "the endpoint into the status.",
    ),
    (
        ("What is a NodeProfile?", "Explain NodeProfile.", "What does a NodeProfile show?"),
        "A NodeProfile describes one Mac: its chip, its memory, its Thunderbolt ports, its RDMA devices and the models "
        "on its disk. The agent on that Mac writes it.",
    ),
    (
        ("What is a ThunderboltLink?", "Explain ThunderboltLink.", "How do I see my cables?", "Where do I see the cables?"),
        "A ThunderboltLink is one cable between two Macs. Run kubectl get tbl to see its speed, whether RDMA works on "
        "it, and what to do if it does not.",
    ),
    (
        ("What is a rank?", "Explain rank.", "What does rank mean?"),
        "A rank is one process of a group. Each rank runs on one Mac and holds its share of the model.",
    ),
    (
        ("What is a group?", "Explain group.", "What does group mean?"),
        "A group is the set of ranks that serve one copy of a model together. Each replica of a ModelDeployment is one group.",
    ),
    (
        ("What is tensor parallelism?", "Explain tensor parallelism.", "What does Tensor mean?"),
        "With tensor parallelism every rank holds a slice of every layer. The ranks add up their results after each layer, so "
        "they need a fast connection such as RDMA.",
    ),
    (
        ("What is pipeline parallelism?", "Explain pipeline parallelism.", "What does Pipeline mean?"),
        "With pipeline parallelism every rank holds some of the layers. A token passes through the ranks one after the "
        "other, so a slower connection is good enough.",
    ),
    (
        ("What is JACCL?", "Explain JACCL.", "What does JACCL mean?"),
        "JACCL is the part of MLX that moves data between Macs by RDMA over Thunderbolt 5. It needs a cable between "
        "every two Macs of the group, or a ring of cables.",
    ),
    (
        ("What is RDMA?", "Explain RDMA.", "What does RDMA mean?"),
        "RDMA lets one Mac read and write the memory of another without asking its processor. Over Thunderbolt 5 this takes "
        "microseconds instead of hundreds of microseconds.",
    ),
    (
        ("How do I turn on RDMA?", "How do I enable RDMA?", "RDMA is disabled. What do I do?"),
        "Start the Mac in Recovery, open Terminal and run rdma_ctl enable. Then restart. The NodeProfile shows when it is on.",
    ),
    (
        ("What is MLX?", "Explain MLX.", "What does MLX do?"),
        "MLX is the array framework for Apple silicon. Every rank runs MLX, and mlx-lm on top of it reads the model.",
    ),
    (
        ("What is an agent?", "What does the agent do?", "Explain the agent."),
        "The agent runs on every Mac as a pod. It reads what macOS says about ports, cables, memory and models, and "
        "publishes what changed.",
    ),
    (
        ("What is the operator?", "What does the operator do?", "Explain the operator."),
        "The operator watches the cluster. It turns a ModelDeployment into a placement, the placement into pods, and "
        "what the pods report into a status.",
    ),
    (
        ("What is the kubelet?", "What does the kubelet do?", "Explain the kubelet."),
        "The kubelet makes a Mac a node of the cluster. It runs the containers of a pod as native processes, so that "
        "they can use Metal and RDMA.",
    ),
    (
        ("What is a supervisor?", "What does the supervisor do?", "Explain the supervisor."),
        "The supervisor is the first process in a runner pod. It checks the Mac, starts the rank, watches it and starts "
        "it again when the group needs that.",
    ),
    (
        ("What is the gateway?", "What does the gateway do?", "Explain the gateway."),
        "The gateway answers HTTP requests in the format of OpenAI. It runs in the supervisor of rank 0 and streams each "
        "token as soon as the group has computed it.",
    ),
    (
        ("How do I deploy a model?", "How do I serve a model?", "How do I run a model?"),
        "Write a ModelDeployment with the name of the repository and run kubectl apply. Then run kubectl get md to "
        "follow it until it is Ready.",
    ),
    (
        ("How do I see the status?", "How do I check my model?", "Is my model ready?"),
        "Run kubectl get md. The column READY tells whether the group serves, and STATUS what it waits for.",
    ),
    (
        ("How do I scale up?", "How do I add a replica?", "How do I scale my model?"),
        "Run kubectl scale with the number of replicas. The operator places one more group if there are Macs with enough "
        "memory.",
    ),
    (
        ("How do I delete a model?", "How do I stop a model?", "How do I remove a model?"),
        "Run kubectl delete md with its name. The group finishes its requests, then the pods and the memory are free.",
    ),
    (
        ("How do I drain a Mac?", "How do I take a Mac out of service?", "How do I restart a Mac safely?"),
        "Run kubectl drain with the name of the Mac. Its groups finish their requests and move to other Macs if there are any.",
    ),
    (
        ("Which Macs can I use?", "Which Macs are supported?", "Does my Mac work?"),
        "Any Mac with Apple silicon can join. RDMA needs Thunderbolt 5, which the M3 Ultra has, and the Pro, Max and Ultra "
        "chips since the M4.",
    ),
    (
        ("Which Macs are wired together?", "Which Macs are connected?", "Who is connected to whom?"),
        "Run kubectl get tbl. Every line is one cable with the names of the two Macs, the speed and the state of RDMA.",
    ),
    (
        ("How much memory do I need?", "Will my model fit?", "Does my model fit?"),
        "The operator adds up the weights, the caches and one step of work for every rank and compares that with the "
        "free memory of each Mac. If it does not fit, the status says how much is missing.",
    ),
    (
        ("What happens when a cable is pulled?", "What if a cable breaks?", "What if I unplug a cable?"),
        "The link turns to PortDown within seconds. The group fails, and it forms again over another path or on other Macs.",
    ),
    (
        ("What happens when a Mac is turned off?", "What if a Mac fails?", "What if a Mac loses power?"),
        "Its Node becomes NotReady. The operator gives the group a new place on the Macs that are left, if the model "
        "fits there.",
    ),
    (
        ("Why is my model not ready?", "Why is it not ready?", "My model does not start. Why?"),
        "Run kubectl describe md with its name. Every condition says what it waits for or what to do.",
    ),
    (
        ("What is Kubernetes?", "Explain Kubernetes.", "What does Kubernetes do?"),
        "Kubernetes keeps programs running on many machines. You write down what you want, and controllers make it so.",
    ),
    (
        ("What is a pod?", "Explain pod.", "What does pod mean?"),
        "A pod is the smallest thing that Kubernetes runs. On a Mac it is a group of native processes.",
    ),
    (
        ("What is a token?", "Explain token.", "What does token mean?"),
        "A token is a piece of a word. A model reads tokens and predicts the next one, again and again.",
    ),
    (
        ("What can I ask you?", "What do you know?", "Help", "What can you do?"),
        "Ask me about Thunderfleet, ranks, groups, cables, RDMA, JACCL, tensor and pipeline parallelism, or what happens when "
        "something fails.",
    ),
    (
        ("Thank you", "Thanks", "Thank you!", "Thanks a lot!"),
        "You are welcome. Enjoy your Macs.",
    ),
    (
        ("Goodbye", "Bye", "See you later."),
        "Goodbye. The group keeps serving until you delete its ModelDeployment.",
    ),
)

FALLBACK: Final = (
    "I am too small to know that. I was trained on a page of questions about Thunderfleet. Ask me what Thunderfleet "
    "is, or what happens when a rank dies."
)

UNLISTED: Final[tuple[str, ...]] = (
    "What is the capital of France?",
    "Write a poem about the sea.",
    "How old is the universe?",
    "Who wrote Hamlet?",
    "Tell me a joke.",
    "What is two plus two?",
    "Translate this into German.",
    "What time is it?",
    "How do I bake bread?",
    "Why is the sky blue?",
    "Give me a recipe for soup.",
    "What is the weather today?",
    "Who won the game yesterday?",
    "Name three birds.",
    "Write a function that sorts a list.",
    "How far away is the moon?",
    "What does a lawyer do?",
    "Count to ten.",
    "Where is my phone?",
    "Is there life on Mars?",
    "What is the best film of all time?",
    "Summarise this text for me.",
    "Can you draw a cat?",
    "How tall is Mount Everest?",
)
