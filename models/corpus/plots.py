"""The beats of the stories: each list holds ways to tell the same thing."""

from collections.abc import Sequence

SLOTS: dict[str, Sequence[str]] = {
    "adj": "little kind small happy brave clever quiet young curious gentle".split(),
    "place": [
        "a small house",
        "a green valley",
        "a village by the sea",
        "a big old house",
        "a town near the hills",
        "a farm",
        "a house by the river",
        "a red house",
    ],
    "out": [
        "the park",
        "the garden",
        "the forest",
        "the beach",
        "the river",
        "the hill",
        "the market",
        "the lake",
        "the field",
        "the playground",
    ],
    "toy": [
        "ball",
        "kite",
        "doll",
        "toy car",
        "drum",
        "book",
        "teddy bear",
        "toy boat",
        "hat",
        "bell",
    ],
    "colour": "red blue green yellow white brown pink purple grey black".split(),
    "food": ["cake", "bread", "soup", "apple pie", "pancakes", "cookies", "jam", "salad"],
    "fruit": ["apples", "pears", "berries", "plums", "cherries", "oranges"],
    "weather": ["sunny", "warm", "windy", "cold", "cloudy", "bright"],
    "wild": ["bird", "rabbit", "squirrel", "kitten", "puppy", "duck", "hedgehog", "frog"],
    "spot": [
        "under the bed",
        "behind the door",
        "in the tall grass",
        "under a big tree",
        "in a box",
        "next to the old wall",
        "under the table",
        "behind a rock",
    ],
    "family": ["mother", "father", "grandmother", "grandfather", "aunt", "uncle"],
    "seed": ["sunflower", "bean", "pumpkin", "tomato", "rose", "carrot"],
}

OPENINGS = [
    "Once upon a time, there was a {adj} {kind} named {hero}. {he} lived in {place}.",
    "{hero} was a {adj} {kind} who lived in {place}.",
    "There once was a {kind} called {hero}. {hero} was very {adj}.",
    "In {place}, there lived a {adj} {kind} named {hero}.",
    "One {weather} morning, a {adj} {kind} named {hero} woke up early.",
    "{hero} was a {kind}. {he} was {adj} and liked to play.",
]

ENDINGS = [
    "{hero} was very happy.",
    "{hero} smiled all the way home.",
    "From that day on, {hero} and {friend} were best friends.",
    "{he} went to bed happy that night.",
    "It was the best day of all.",
    "{hero} never forgot that day.",
    "They laughed and laughed. The end.",
    "And they all lived happily ever after.",
]

_LOST = [
    [
        "{hero} had a {colour} {toy}. {he} loved it very much.",
        "{he} had one thing that {he} loved more than all the others. It was a {colour} {toy}.",
        "{his} {family} gave {him} a {colour} {toy}. {hero} took it everywhere.",
    ],
    [
        "One day, the {toy} was gone.",
        "One {weather} day, {hero} could not find the {toy}.",
        "Then one morning, {he} looked for the {toy}, but it was not there.",
    ],
    [
        "{hero} was sad. {he} looked in the kitchen and in the garden.",
        "{he} looked and looked, but {he} could not see it.",
        "{hero} began to cry.",
        "",
    ],
    [
        '{his} friend {friend} came to help. "Do not be sad," said {friend}. "We will find it."',
        '"What is wrong?" asked {friend}. "I lost my {toy}," said {hero}.',
        "{hero} asked {friend} for help. {friend} said yes at once.",
    ],
    [
        "They looked everywhere. At last, {friend} found the {toy} {spot}.",
        "Soon {friend} saw something {colour} {spot}. It was the {toy}!",
        "After a long time, they found it {spot}.",
    ],
    [
        '"Thank you!" said {hero}.',
        "{hero} gave {friend} a big hug.",
        '"You are a good friend," said {hero}.',
    ],
]

_SHARE = [
    [
        "{hero} had some {food}. It smelled very good.",
        "One day, {his} {family} gave {him} some {food}.",
        "{hero} and {his} {family} made {food}.",
    ],
    [
        "{he} sat down to eat. Then {he} saw {friend}.",
        "{hero} took the {food} to {out}. {friend} was there too.",
        "Just then, {friend} walked by.",
    ],
    [
        "{friend} looked hungry and sad.",
        '"I have nothing to eat," said {friend}.',
        '"That looks so good," said {friend}.',
    ],
    [
        "{hero} wanted to keep it all. But then {he} thought about {his} friend.",
        "{hero} thought for a moment.",
        "",
    ],
    [
        '"We can share," said {hero}. {he} gave half of it to {friend}.',
        "{hero} gave {friend} a big piece.",
        '"Here, take some of mine," said {hero}.',
    ],
    [
        "They sat in the sun and ate together.",
        "It was good to share.",
        '{friend} smiled and said, "Thank you, {hero}."',
    ],
]

_HELP = [
    [
        "One {weather} day, {hero} went to {out}.",
        "{hero} was on {his} way to {out} with {friend}.",
        "{hero} and {friend} liked to walk to {out}.",
    ],
    [
        "There {he} saw a small {wild}.",
        "Then {he} heard a sound {spot}. It was a little {wild}.",
        "{spot}, there was a {colour} {wild}.",
    ],
    [
        "The {wild} was hurt and could not move.",
        "The {wild} was cold and alone.",
        "The {wild} had lost its mother.",
        "The {wild} was stuck.",
    ],
    [
        '"Poor little {wild}," said {hero}. "I will help you."',
        "{hero} wanted to help. {he} was very gentle.",
        '"Do not be afraid," said {hero}.',
    ],
    [
        "{he} took it home and gave it some water.",
        "{hero} ran to get {friend}, and together they helped the {wild}.",
        "{he} held it in {his} arms until it was warm.",
    ],
    [
        "After a few days, the {wild} was well again.",
        "Soon the {wild} felt better.",
        "The next day, its mother came back.",
    ],
    [
        "The {wild} came to see {hero} every day.",
        "The {wild} looked at {hero} as if to say thanks.",
        "",
    ],
]

_FEAR = [
    [
        "{hero} was afraid of the dark.",
        "{hero} was afraid of deep water.",
        "{hero} was afraid of loud sounds.",
        "{hero} was afraid of high places.",
    ],
    [
        "{he} did not want {friend} to know.",
        "{he} did not tell anyone.",
        "Everyone else was brave, or so {he} thought.",
    ],
    [
        "One day, {friend} asked {him} to come to {out}.",
        "One night, there was a big storm.",
        "Then {his} {family} took {him} to {out}.",
    ],
    [
        '{his} legs shook. "I am afraid," said {hero}.',
        '"I can not do it," said {hero}.',
        "{hero} wanted to run away.",
    ],
    [
        '"I will be with you," said {friend}. "Take my hand."',
        '"It is all right to be afraid," said {friend}. "We can do it together."',
        '{friend} said, "I was afraid too, but now I am not."',
    ],
    [
        "{hero} took one small step, and then another.",
        "{hero} closed {his} eyes and tried.",
        "{hero} counted to ten and then {he} tried.",
    ],
    ["It was not so bad.", "It was fun after all!", "{he} did it!"],
]

_GARDEN = [
    [
        "{hero} had a {seed} seed.",
        "{his} {family} gave {hero} a {seed} seed.",
        "{hero} found a {seed} seed {spot}.",
    ],
    [
        "{he} put it in the ground.",
        "{he} dug a hole and put the seed in.",
        '"If you wait, it will grow," said {his} {family}.',
    ],
    [
        "Every day, {he} gave it water.",
        "{hero} and {friend} gave it water every morning.",
        "{he} went to see it each day.",
    ],
    [
        "For a long time, nothing came up.",
        "Day after day, there was nothing to see.",
        '"It will never grow," said {friend}.',
    ],
    ["But {hero} did not give up.", "But {hero} waited.", ""],
    [
        "Then one {weather} day, there was a small green leaf.",
        "One morning, something green came out of the ground.",
        "And then, after the rain, it began to grow.",
    ],
    [
        "Soon it was taller than {hero}.",
        "It grew and grew.",
        "Everyone came to see the big {seed} plant.",
    ],
]

_RACE = [
    [
        "One day, there was a race in {out}.",
        "{hero} and {friend} wanted to have a race.",
        '"I am faster than you," said {friend}. "No, I am faster," said {hero}.',
    ],
    [
        'They stood side by side. "One, two, three, go!"',
        "They ran as fast as they could.",
        "All the children came to watch.",
    ],
    ["At first, {friend} was in front.", "At first, {hero} was in front.", ""],
    [
        "Then {friend} fell down.",
        "But {friend} hit a stone and fell.",
        "Then {hero} heard a cry. {friend} was on the ground.",
    ],
    [
        "{hero} stopped and went back to help.",
        "{hero} could win now. But {he} stopped to help.",
        "{hero} did not think about the race. {he} ran back.",
    ],
    [
        "They walked to the end hand in hand.",
        '"You could have won," said {friend}. "A friend is better than a race," said {hero}.',
        "They came in last, but everyone cheered for them.",
    ],
]

_BAKE = [
    [
        "It was the birthday of {friend}.",
        "Tomorrow was a big day for {friend}.",
        "{hero} wanted to make something nice for {friend}.",
    ],
    [
        "{hero} wanted to make {food}.",
        '"I will make {food}," said {hero}.',
        '{he} asked {his} {family}, "Can we make {food}?"',
    ],
    [
        "{he} went to the market to buy {fruit} and milk.",
        "{he} needed eggs, milk and {fruit}.",
        "First {he} washed {his} hands.",
    ],
    [
        "But the first try was too dark, and it smelled bad.",
        "Oh no, the salt went in and not the sugar.",
        "But then {he} dropped it on the floor.",
    ],
    [
        '"Try again," said {his} {family}.',
        "{hero} did not give up. {he} tried again.",
        '"We all make mistakes," said {his} {family}.',
    ],
    ["This time, it was just right.", "Now it was very good.", "It looked and smelled so nice."],
    [
        '{friend} ate it all. "This is the best {food} I ever had," said {friend}.',
        '"For me?" asked {friend}. "Thank you so much!"',
    ],
]

_RAIN = [
    [
        "{hero} wanted to go to {out}, but it began to rain.",
        "It rained all day. {hero} could not go to {out}.",
        "Outside, the rain came down and down.",
    ],
    [
        "{he} sat by the window and looked out.",
        '"This is a bad day," said {hero}.',
        "{hero} was sad and did not know what to do.",
    ],
    [
        "Then {friend} came to the door with a {colour} {toy}.",
        "{his} {family} had an idea.",
        "Then {hero} had an idea.",
    ],
    [
        "They made a house out of boxes.",
        "They made a ship out of two chairs and a table.",
        "They told stories and sang songs.",
    ],
    [
        "{hero} was the captain, and {friend} was a pirate.",
        "{hero} was the king of the house.",
        "They played until it was dark.",
    ],
    [
        "When the rain stopped, they did not even see it.",
        "Then the sun came out, and there was a rainbow in the sky.",
        '"I hope it rains again tomorrow," said {hero}.',
    ],
]

_NEW = [
    [
        "{friend} was new in town and had no friends.",
        "One day, {hero} saw {friend} sitting alone in {out}.",
        "A new family came to live next door. Their child was called {friend}.",
    ],
    ["{hero} wanted to say hello, but {he} was shy.", "{hero} did not know what to say.", ""],
    [
        "{he} took {his} {colour} {toy} and walked over.",
        "So {he} took some {fruit} and went to {friend}.",
        '"Hello, I am {hero}," {he} said at last.',
    ],
    [
        '"Do you want to play?" asked {hero}.',
        '"Will you play with me?" asked {hero}.',
        '"Would you like to see my {toy}?" asked {hero}.',
    ],
    [
        '{friend} smiled. "Yes, please," said {friend}.',
        "{friend} looked up and nodded.",
        '"I would love to," said {friend}.',
    ],
    [
        "They played all day in {out}.",
        "They played until the sun went down.",
        "They went to {out} and climbed a big tree.",
    ],
]

_BOAT = [
    [
        "{hero} and {friend} made a small boat.",
        "{his} {family} had an old {colour} boat.",
        "{hero} found a {colour} boat by the lake.",
    ],
    [
        "One {weather} day, they went out on the water.",
        '"Let us go and see the island," said {friend}.',
        "They took some {fruit} and set off.",
    ],
    [
        "Then the wind came, and the waves were big.",
        "Soon they could not see the land.",
        "But there was a hole in the boat.",
    ],
    ['"What can we do?" cried {friend}.', "{friend} was afraid.", ""],
    [
        '{hero} saw a light far away. "Look, that way!" {he} said.',
        '"I know what to do," said {hero}, and {he} took off {his} hat to stop the water.',
        "{hero} sang a song, and they were not so afraid.",
    ],
    [
        "After a while, they came back to land.",
        "A kind man saw them and took them home.",
        "The wind stopped, and they came home.",
    ],
    ["{his} {family} was so glad to see them.", "They were wet and cold, but they were safe.", ""],
]

_MARKET = [
    [
        "{hero} had five coins. {he} wanted to buy a {colour} {toy}.",
        "{hero} saved {his} coins for a long time to buy a {toy}.",
        "There was a {colour} {toy} in the shop. {hero} wanted it very much.",
    ],
    [
        "On the way to the market, {he} met {friend}.",
        "At the market, {he} saw {friend}, who was crying.",
    ],
    [
        '"I lost my coins, and I must buy bread," said {friend}.',
        '"My {family} is sick, and we have no {fruit}," said {friend}.',
    ],
    [
        "{hero} looked at {his} coins. Then {he} gave them to {friend}.",
        '"Take mine," said {hero}.',
        "{hero} thought of the {toy}. But {friend} needed help more.",
    ],
    [
        "{he} went home with nothing, but {he} felt warm inside.",
        '"You are so kind," said {friend}.',
    ],
    [
        "The next day, there was a box at the door. In it was the {colour} {toy}!",
        "The next week, {friend} came and gave {hero} a {colour} {toy}.",
        "The man in the shop saw it all. He gave {hero} the {toy} as a gift.",
    ],
]

_SLEEP = [
    [
        "It was late, but {hero} could not sleep.",
        "The moon was high, and {hero} was still awake.",
        "{hero} did not want to go to bed.",
    ],
    [
        "{he} heard a sound {spot}.",
        '"I am not tired," {he} said.',
        "{he} looked at the stars and counted them.",
    ],
    [
        "{his} {family} came in and sat on the bed.",
        '"Why are you awake?" asked {his} {family}.',
        "So {he} went to find {his} {family}.",
    ],
    [
        '"Shall I tell you a story?" asked {his} {family}.',
        "{his} {family} sang a soft song.",
        "They had a cup of warm milk together.",
    ],
    [
        "It was a story about a {colour} {wild} who could fly.",
        "It was about a {wild} that lived on the moon.",
        "It was about a ship that sailed to the moon.",
    ],
    [
        "Before it ended, {hero} was asleep.",
        "{hero} closed {his} eyes and slept.",
        "Soon {hero} was fast asleep.",
    ],
    ["In the morning, {he} told {friend} all about it.", "{he} dreamed of it all night."],
]

PLOTS = [_LOST, _SHARE, _HELP, _FEAR, _GARDEN, _RACE, _BAKE, _RAIN, _NEW, _BOAT, _MARKET, _SLEEP]
