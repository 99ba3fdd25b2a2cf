"""What the facts are about: nothing here but data."""


def _pairs(text: str) -> dict[str, str]:
    """Read "key: value, key: value" into a dictionary."""
    rows = (row.split(":") for row in text.replace("\n", " ").split(","))
    return {key.strip(): value.strip() for key, value in rows}


CAPITALS = _pairs(
    """France: Paris, Germany: Berlin, Italy: Rome, Spain: Madrid, Portugal: Lisbon,
    England: London, Ireland: Dublin, Greece: Athens, Poland: Warsaw, Austria: Vienna,
    Hungary: Budapest, Sweden: Stockholm, Norway: Oslo, Finland: Helsinki, Denmark: Copenhagen,
    Belgium: Brussels, Iceland: Reykjavik, Russia: Moscow, Turkey: Ankara, Egypt: Cairo,
    Kenya: Nairobi, Ghana: Accra, Morocco: Rabat, India: New Delhi, China: Beijing, Japan: Tokyo,
    South Korea: Seoul, Thailand: Bangkok, Vietnam: Hanoi, Indonesia: Jakarta, Nepal: Kathmandu,
    Iran: Tehran, Iraq: Baghdad, Canada: Ottawa, Mexico: Mexico City, Cuba: Havana, Peru: Lima,
    Brazil: Brasilia, Chile: Santiago, Argentina: Buenos Aires, Australia: Canberra,
    New Zealand: Wellington, Scotland: Edinburgh, Wales: Cardiff, Croatia: Zagreb,
    Serbia: Belgrade, Bulgaria: Sofia, Romania: Bucharest, Ukraine: Kyiv, Ethiopia: Addis Ababa"""
)
CONTINENTS = _pairs(
    """France: Europe, Germany: Europe, Italy: Europe, Spain: Europe, Greece: Europe,
    Poland: Europe, Norway: Europe, Egypt: Africa, Kenya: Africa, Ghana: Africa, Morocco: Africa,
    Ethiopia: Africa, India: Asia, China: Asia, Japan: Asia, Thailand: Asia, Vietnam: Asia,
    Nepal: Asia, Canada: North America, Mexico: North America, Cuba: North America,
    Peru: South America, Brazil: South America, Chile: South America, Argentina: South America"""
)
LANGUAGES = _pairs(
    """France: French, Germany: German, Italy: Italian, Spain: Spanish, Portugal: Portuguese,
    England: English, Greece: Greek, Poland: Polish, Sweden: Swedish, Norway: Norwegian,
    Finland: Finnish, Denmark: Danish, Hungary: Hungarian, Russia: Russian, Turkey: Turkish,
    Egypt: Arabic, China: Chinese, Japan: Japanese, Thailand: Thai, Brazil: Portuguese,
    Mexico: Spanish, Peru: Spanish, Australia: English, Austria: German, Cuba: Spanish"""
)
SOUNDS = _pairs(
    """cow: moo, dog: woof, cat: meow, duck: quack, sheep: baa, pig: oink, bee: buzz,
    owl: hoot, lion: roar, frog: croak, snake: hiss, horse: neigh, mouse: squeak, rooster: crow,
    crow: caw, wolf: howl"""
)
YOUNG = _pairs(
    """dog: puppy, cat: kitten, cow: calf, sheep: lamb, horse: foal, duck: duckling, bear: cub,
    goat: kid, pig: piglet, hen: chick, frog: tadpole, goose: gosling, deer: fawn,
    kangaroo: joey, swan: cygnet, fish: fry"""
)
HOMES = _pairs(
    """bee: a hive, bird: a nest, dog: a kennel, horse: a stable, rabbit: a burrow,
    spider: a web, bear: a cave, fish: the water, camel: the desert, penguin: the cold south,
    monkey: the jungle, whale: the sea, cow: a barn, pig: a sty, ant: an anthill, fox: a den"""
)
FOODS = _pairs(
    """cow: grass, rabbit: carrots, monkey: bananas, panda: bamboo, squirrel: nuts, bear: honey,
    lion: meat, horse: hay, mouse: cheese, koala: leaves, frog: flies, hen: seeds, seal: fish,
    caterpillar: cabbage, cat: mice, dog: bones"""
)
LEGS = _pairs(
    """dog: four, bird: two, spider: eight, ant: six, cow: four, snake: zero, bee: six,
    chicken: two, horse: four, crab: ten, fish: zero, elephant: four"""
)
CLASSES = _pairs(
    """eagle: a bird, shark: a fish, dog: a mammal, ant: an insect, lizard: a reptile,
    whale: a mammal, frog: an amphibian, penguin: a bird, bee: an insect, salmon: a fish,
    bat: a mammal, crocodile: a reptile, toad: an amphibian, butterfly: an insect, owl: a bird,
    tiger: a mammal"""
)
COLOURS = _pairs(
    """grass: green, the sky: blue, snow: white, coal: black, the sun: yellow, blood: red,
    a lemon: yellow, a banana: yellow, a strawberry: red, a carrot: orange, an elephant: grey,
    milk: white, chocolate: brown, a tomato: red, a frog: green, a flamingo: pink, the sea: blue,
    a pumpkin: orange, a plum: purple, a crow: black, gold: yellow, a cucumber: green,
    a polar bear: white, mud: brown"""
)
MIXES = _pairs(
    """red and yellow: orange, blue and yellow: green, red and blue: purple,
    black and white: grey, red and white: pink, red and green: brown"""
)
OPPOSITES = _pairs(
    """hot: cold, big: small, up: down, left: right, day: night, happy: sad, fast: slow,
    open: closed, hard: soft, old: young, tall: short, wet: dry, light: dark, full: empty,
    good: bad, first: last, near: far, rich: poor, loud: quiet, clean: dirty, early: late,
    easy: difficult, strong: weak, thick: thin, wide: narrow, true: false, high: low, in: out,
    on: off, over: under, push: pull, begin: end, win: lose, love: hate, buy: sell,
    give: take, front: back, inside: outside, brave: afraid, heavy: light, north: south,
    east: west, summer: winter, above: below, always: never, many: few, sweet: sour,
    smooth: rough, yes: no, black: white"""
)
PLURALS = _pairs(
    """mouse: mice, child: children, foot: feet, tooth: teeth, goose: geese, man: men,
    woman: women, leaf: leaves, wolf: wolves, knife: knives, sheep: sheep, fish: fish,
    baby: babies, box: boxes, city: cities, person: people, ox: oxen, half: halves, bus: buses,
    berry: berries"""
)
PAST = _pairs(
    """go: went, see: saw, eat: ate, run: ran, give: gave, take: took, come: came, find: found,
    think: thought, bring: brought, buy: bought, write: wrote, speak: spoke, sing: sang,
    swim: swam, fly: flew, drink: drank, sleep: slept, make: made, know: knew, grow: grew,
    fall: fell, feel: felt, hold: held, win: won, lose: lost, keep: kept, teach: taught,
    break: broke, begin: began"""
)
SIDES = _pairs(
    "triangle: three, square: four, pentagon: five, hexagon: six, octagon: eight, rectangle: four"
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
NUMBERS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
JOBS = _pairs(
    """baker: bakes bread, farmer: grows food, teacher: teaches children, doctor: helps sick people,
    pilot: flies planes, singer: sings songs, painter: paints pictures, writer: writes books,
    cook: cooks meals, builder: builds houses, sailor: sails ships, dentist: looks after teeth,
    gardener: grows flowers, shepherd: keeps sheep, tailor: makes clothes,
    firefighter: puts out fires"""
)
COUNTS = _pairs(
    """days are in a week: seven, months are in a year: twelve, hours are in a day: twenty-four,
    minutes are in an hour: sixty, seconds are in a minute: sixty, fingers are on a hand: five,
    wheels are on a car: four, wheels are on a bicycle: two, letters are in the alphabet: twenty-six,
    seasons are in a year: four, eggs are in a dozen: twelve, years are in a century: one hundred,
    colours are in a rainbow: seven, planets are in the solar system: eight,
    players are in a football team: eleven, strings are on a violin: four"""
)
TOOLS = _pairs(
    """cut paper: scissors, hit a nail: a hammer, eat soup: a spoon, write: a pencil,
    sweep the floor: a broom, brush your teeth: a toothbrush, open a lock: a key, dig: a spade,
    cut bread: a knife, dry your hands: a towel, tell the time: a clock, see the stars: a telescope,
    measure: a ruler, comb your hair: a comb, sew: a needle, light a room: a lamp"""
)
WORLD = [
    ("What is the largest planet?", "The largest planet is", "Jupiter"),
    ("What is the smallest planet?", "The smallest planet is", "Mercury"),
    ("What is the red planet?", "The red planet is", "Mars"),
    ("What planet do we live on?", "We live on the planet", "Earth"),
    ("What planet has big rings?", "The planet with big rings is", "Saturn"),
    ("What planet is the hottest?", "The hottest planet is", "Venus"),
    ("What is the largest ocean?", "The largest ocean is the", "Pacific"),
    ("What is the tallest animal?", "The tallest animal is the", "giraffe"),
    ("What is the largest animal?", "The largest animal is the", "blue whale"),
    ("What is the fastest land animal?", "The fastest land animal is the", "cheetah"),
    ("What is the highest mountain?", "The highest mountain is", "Mount Everest"),
    ("What is the largest country?", "The largest country is", "Russia"),
    ("What is the largest desert of sand?", "The largest desert of sand is the", "Sahara"),
    ("What is frozen water called?", "Frozen water is called", "ice"),
    ("What goes around the Earth?", "The thing that goes around the Earth is the", "moon"),
    ("What is the nearest star?", "The nearest star is the", "sun"),
    ("What do bees make?", "Bees make", "honey"),
    ("What do plants need to grow?", "Plants need light and", "water"),
    ("What is cheese made from?", "Cheese is made from", "milk"),
    ("What is bread made from?", "Bread is made from", "flour"),
    ("What is paper made from?", "Paper is made from", "wood"),
    ("What is glass made from?", "Glass is made from", "sand"),
    ("What is wine made from?", "Wine is made from", "grapes"),
    ("What is the coldest season?", "The coldest season is", "winter"),
    ("What is the hottest season?", "The hottest season is", "summer"),
    ("When do leaves fall?", "Leaves fall in", "autumn"),
    ("When do flowers come out?", "Flowers come out in", "spring"),
    ("Where does the sun rise?", "The sun rises in the", "east"),
    ("Where does the sun set?", "The sun sets in the", "west"),
    ("What is the king of the jungle?", "The king of the jungle is the", "lion"),
    ("What do we breathe?", "We breathe", "air"),
    ("What do cows give us?", "Cows give us", "milk"),
    ("What do hens lay?", "Hens lay", "eggs"),
    ("What do sheep give us?", "Sheep give us", "wool"),
    ("What do you hear with?", "You hear with your", "ears"),
    ("What do you see with?", "You see with your", "eyes"),
    ("What do you smell with?", "You smell with your", "nose"),
    ("What pumps blood?", "Blood is pumped by the", "heart"),
    ("What do you think with?", "You think with your", "brain"),
    ("What is the first letter of the alphabet?", "The first letter of the alphabet is", "A"),
    ("What is the last letter of the alphabet?", "The last letter of the alphabet is", "Z"),
    ("What is the longest river in Africa?", "The longest river in Africa is the", "Nile"),
    ("What river flows through London?", "The river that flows through London is the", "Thames"),
    ("What river flows through Paris?", "The river that flows through Paris is the", "Seine"),
    ("Who wrote Hamlet?", "Hamlet was written by", "Shakespeare"),
    ("Who painted the Mona Lisa?", "The Mona Lisa was painted by", "Leonardo da Vinci"),
]
